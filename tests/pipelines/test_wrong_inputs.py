"""Settings and arguments that make no sense are refused with a sentence, soon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy.coordinates import SkyCoord
from click.testing import CliRunner

import dustmap
from pipelines.base.errors import InputError
from pipelines.cli import main

SETTINGS = """
box.spacing=40kpc
box.spacing=1e-9
box.spacing=1e-5
box.spacing=1e-300
box.spacing=1e300
box.spacing=nan
box.spacing=inf
box.spacing=
box.spacing=[40,nan,40]
box.spacing=[40,40]
box.x=[-1e6,1e6] box.spacing=1e-3
box.x=[-1e300,1e300]
box.z=[-1e300,1e300]
box.z=[nan,5]
box.levels=60
box.levels=5 box.spacing=80 box.finest=30
box.shape=[1000000,1000000,1000000]
box.finest=1e300
prior.lengthscale=1e-300
prior.lengthscale=1e300
prior.std=1e300
prior.scale_height=1e-300
prior.mean_density=1e300
model.common_noise=1e300
data.max_distance=1e-9
budget.memory_gib=1e-9
inference.samples=1000000000
inference.seed=99999999999999999999
unknown.key=1
box.spacin=40
box=3
box.spacing.x=3
=3
box.spacing
""".strip().split("\n")
PLACE = SkyCoord([3.0], [2.0], [90.0], unit=("deg", "deg", "pc"), frame="galactic")
NONE = PLACE[:0]
ARRAY = np.zeros(3)
EMPTY = dict.fromkeys(("l", "b", "distance"), ARRAY[:0])
MAPS = ["l=l:deg", "b=b:deg", "distance=distance:pc"]
DOORS: dict[str, Callable[[Path], Any]] = {
    "a map that is an array": lambda run: dustmap.open_map(ARRAY),
    "no map": lambda run: dustmap.open_map(None),
    "stars that are an array": lambda run: dustmap.fit(ARRAY, output="new"),
    "no stars": lambda run: dustmap.fit(None, output="new"),
    "an output that is an array": lambda run: dustmap.fit("x", output=ARRAY),
    "coordinates without a row": lambda run: dustmap.fit(
        NONE, ARRAY[:0], ARRAY[:0], output="new"
    ),
    "settings in a list": lambda run: dustmap.fit("x", settings=["box.spacing=3"]),
    "settings without names": lambda run: dustmap.fit("x", settings={3: 4}),
    "an empty name": lambda run: dustmap.fit("x", settings={"": 4}),
    "a setting of NaN": lambda run: dustmap.fit(
        "x", settings={"box.spacing": float("nan")}
    ),
    "a setting that is an array": lambda run: dustmap.fit(
        "x", settings={"box.spacing": ARRAY}
    ),
    "sources that are an array": lambda run: dustmap.ingest(ARRAY, "new.parquet"),
    "an empty list": lambda run: dustmap.ingest([], "new.parquet"),
    "no source": lambda run: dustmap.ingest(None, "new.parquet"),
    "a table for an output": lambda run: dustmap.ingest(run, ARRAY),
    "a run that is an array": lambda run: dustmap.predict(ARRAY, PLACE),
    "places that are an array": lambda run: dustmap.predict(run, ARRAY),
    "a table without rows": lambda run: dustmap.predict(run, EMPTY, mappings=MAPS),
    "stars of NaN": lambda run: dustmap.simulate(stars=float("nan")),
    "10^18 stars": lambda run: dustmap.simulate(stars=10**18),
    "a truth of 10^30 points": lambda run: dustmap.simulate(truth={"spacing": 1e-9}),
    "no rows to learn": lambda run: dustmap.regress(ARRAY[:0, None], ARRAY[:0]),
    "text to learn": lambda run: dustmap.regress("x", "y"),
    "an array to query": lambda run: dustmap.open_map(run).query(
        ARRAY, integrated=True
    ),
    "percentiles in words": lambda run: dustmap.open_map(run).query(
        PLACE, integrated=True, mode="percentile", pct="50"
    ),
    "a copy to an array": lambda run: dustmap.open_map(run).save(ARRAY),
}


@pytest.mark.parametrize("line", SETTINGS)
def test_a_setting_that_makes_no_sense_is_refused(
    line: str, chain: Any, tmp_path: Path
) -> None:
    pairs = [word for pair in line.split(" ") for word in ("--set", pair)]
    place = [str(chain.folder / "stars.parquet"), "-o", str(tmp_path / "new")]
    found = CliRunner().invoke(main, ["fit", *place, *pairs])
    assert isinstance(found.exception, SystemExit), repr(found.exception)
    assert found.exit_code == 2, found.output
    assert found.output.strip().splitlines()[-1].startswith("dustmap: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", DOORS)
def test_an_argument_that_makes_no_sense_is_refused(
    what: str, chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        DOORS[what](chain.folder / "run")
    assert not list(tmp_path.iterdir())
