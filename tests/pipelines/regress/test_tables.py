"""Random tables of many kinds: an exact process, neighbours and trees beside."""

import dataclasses
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial import KDTree

from pipelines.regress import regress_table
from tests.pipelines.regress.exact import predict_exactly
from tests.pipelines.regress.tables import NOISE_FREE, ROWS, TABLES, draw

SEEDS = {
    name: range(5)
    for name in ("ages", "metallicities", "fast_and_slow", "lattice", "heavy_input")
}
# The quickest, with noise and without.
EVERY_TIME = ("ages", "quiet_curve")
CASES = [
    pytest.param(
        name,
        seed,
        marks=[] if name in EVERY_TIME and seed == 0 else [pytest.mark.slow],
        id=f"{name}-{seed}",
    )
    for name in TABLES
    for seed in SEEDS.get(name, (0,))
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What the command made of a table's test rows."""

    rmse: float
    held: float
    grade: str
    seconds: float


@cache
def measured(name: str, seed: int) -> Measured:
    x, y = draw(name)
    columns = {f"x{axis}": values for axis, values in enumerate(x.T)}
    columns |= {"y": y, "test": np.arange(2 * ROWS) >= ROWS}
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        source = Path(folder) / "table.parquet"
        pq.write_table(pa.table(columns), source)
        report = regress_table(
            source, Path(folder) / "run", target="y", split_column="test", seed=seed
        )
    return Measured(
        rmse=report.metrics["rmse"],
        held=report.metrics["coverage_68"],
        grade=report.verdict.grade,
        seconds=time.monotonic() - began,
    )


@cache
def exact(name: str) -> float:
    """RMSE of an exact process with the scales of largest evidence."""
    x, y = draw(name)
    return rmse(predict_exactly(x[:ROWS], y[:ROWS], x[ROWS:]), y[ROWS:])


def rmse(predicted, truth):
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_a_table_is_predicted_as_well_as_by_an_exact_process(name, seed):
    found, std = measured(name, seed), float(draw(name)[1][ROWS:].std())
    limit = 0.02 * std if name in NOISE_FREE else 1.1 * exact(name)
    print(f"{name} {seed}: {found}, at most {limit:.4g}")
    assert found.rmse <= limit
    assert 0.60 <= found.held <= 0.76 or found.grade != "usable"


@pytest.mark.slow
def test_the_mean_of_the_nearest_rows_is_beaten_on_most_tables():
    errors = {}
    for name in TABLES:
        x, y = draw(name)
        unit = x[:ROWS].std(axis=0)
        near = KDTree(x[:ROWS] / unit).query(x[ROWS:] / unit, k=10)[1]
        errors[name] = rmse(y[:ROWS][near].mean(axis=1), y[ROWS:])
    print({name: f"{error:.4g}" for name, error in errors.items()})
    assert sum(measured(name, 0).rmse < errors[name] for name in TABLES) >= 15
