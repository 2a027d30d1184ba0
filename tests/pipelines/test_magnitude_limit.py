"""Catalogues that lack the stars behind much dust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from one_cloud import BOX, catalogue

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.config import FitConfig, load_config
from pipelines.fit import fit
from pipelines.fit.magnitude_limit import faintest, selection_beta
from pipelines.run.held_out import read_held_out
from pipelines.run.residual import read_residual

LIMIT, GROWTH, DIMMING = 15.0, 0.4, 0.8


def limited(stars: Stars, seed: int = 1) -> Stars:
    """The stars with magnitudes whose counts grow up to the limit."""
    draws = np.random.default_rng(seed).uniform(size=len(stars))
    return replace(stars, extra={"m": LIMIT + np.log10(draws) / GROWTH})


def config(*more: str) -> FitConfig:
    given = ["data.magnitude=m", f"data.limit={LIMIT}", f"data.dimming={DIMMING}"]
    return load_config(FitConfig, overrides=[*given, *more])


def beta_of(stars: Stars, config: FitConfig) -> float:
    return selection_beta(faintest(stars.extra, config), config)


def test_slope_of_counts_is_found() -> None:
    found = beta_of(limited(catalogue(20_000)), config())
    assert found == pytest.approx(GROWTH * DIMMING * np.log(10), rel=0.1)
    assert beta_of(catalogue(10), FitConfig()) == 0.0


@pytest.mark.parametrize("setting", ["data.magnitude=g", "data.limit=30"])
def test_columns_and_limits_that_are_not_the_catalogues(setting: str) -> None:
    with pytest.raises(InputError, match=setting.split("=")[0]):
        beta_of(limited(catalogue(500)), config(setting))


def test_magnitude_needs_a_limit_and_a_residual() -> None:
    with pytest.raises(InputError, match="limit"):
        load_config(FitConfig, overrides=["data.magnitude=m"])
    with pytest.raises(InputError, match="residual"):
        config("model.residual=false")


@pytest.mark.usefixtures("no_baseline")
def test_extinctions_of_seen_stars_are_raised(tmp_path: Path) -> None:
    source, run = tmp_path / "stars.parquet", tmp_path / "run"
    write_stars(source, limited(catalogue(1_000)), overwrite=False)
    places = [f"box.{axis}={list(ends)}" for axis, ends in zip("xyz", BOX)]
    small = ["box.spacing=50", "inference.samples=4", "data.holdout=0.2"]
    fit(source, run, config(*places, *small))
    held, field = read_held_out(run), read_residual(run)
    assert held is not None and field is not None
    measured = read_stars(source)
    assert measured.extinction is not None
    known = dict(zip(measured.distance.tolist(), measured.extinction, strict=True))
    raised = held.observed - [known[distance] for distance in held.distance.tolist()]
    # By no less than what the grid leaves, and behind the cloud more than before it.
    places = Stars(l=held.l, b=held.b, distance=held.distance).positions()
    unresolved = field.unresolved(torch.as_tensor(places)).numpy()
    beta = beta_of(measured, config())
    assert (raised > 0.99 * beta * unresolved).all()
    behind = held.predicted["mean"] > np.median(held.predicted["mean"])
    assert raised[behind].mean() > 2 * raised[~behind].mean()
