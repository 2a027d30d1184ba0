"""Random tables of many kinds beside an exact process."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.regress import regress_table
from tests.pipelines.regress.exact import predict_exactly
from tests.pipelines.regress.tables import NOISE_FREE, ROWS, TABLES, draw


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_predicted_as_well_as_by_an_exact_process(name, tmp_path):
    x, y = draw(name)
    columns = {f"x{axis}": values for axis, values in enumerate(x.T)}
    columns |= {"y": y, "test": np.arange(2 * ROWS) >= ROWS}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    report = regress_table(
        tmp_path / "table.parquet", tmp_path / "run", target="y", split_column="test"
    )
    truth = y[ROWS:]
    limit = 0.02 * truth.std()
    if name not in NOISE_FREE:
        exact = predict_exactly(x[:ROWS], y[:ROWS], x[ROWS:])
        limit = 1.1 * np.sqrt(np.mean((exact - truth) ** 2))
    assert report.metrics["rmse"] <= limit
    held = report.metrics["coverage_68"]
    assert 0.60 <= held <= 0.76 or report.verdict.grade != "usable"
