"""All stages of a fit on a stand-in for a device, from the plan to held-out stars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stand_in_device import STAND_IN, stand_in_device

from pipelines.catalog.schema import Stars, read_table, write_stars
from pipelines.config import FitConfig, load_config
from pipelines.fit import fit, opening
from pipelines.run.held_out import HELD_OUT_FILE

SETTINGS = [
    *("box.spacing=50", "box.x=[-400,400]", "box.y=[-400,400]", "box.z=[-400,400]"),
    *("inference.samples=4", "data.validation=0.2", "data.holdout=0.1"),
]


def fitted(table: Path, output: Path) -> dict[str, np.ndarray]:
    fit(table, output, load_config(FitConfig, overrides=SETTINGS))
    return read_table(output / HELD_OUT_FILE)[0]


@pytest.mark.slow
def test_all_stages_agree_with_the_cpu(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    l, b = rng.uniform(0, 20, (2, 900))  # noqa: E741
    distance = rng.uniform(250, 390, 900)
    true = 1 + 0.6 * np.sin(l) * np.cos(b) + 1e-3 * distance
    stars = Stars(
        l=l,
        b=b,
        distance=distance,
        extinction=true + 0.03 * rng.standard_normal(900),
        extinction_error=np.full(900, 0.03),
    )
    table = tmp_path / "stars.parquet"
    write_stars(table, stars, overwrite=False)
    here = fitted(table, tmp_path / "cpu")
    of_config = opening.device_of
    monkeypatch.setattr(
        opening, "device_of", lambda given: {**of_config(given), "device": STAND_IN}
    )
    with stand_in_device():
        there = fitted(table, tmp_path / "device")
    judged = [n for n in here if n.startswith(("extinction_", "density_", "kriging"))]
    assert len(judged) == 17
    for name in judged:
        gap = np.abs(there[name] - here[name]).max()
        assert gap <= 1e-6 * np.abs(here[name]).max(), name
