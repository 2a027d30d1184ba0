"""Catalogues with other zero points and slopes, joined in one fit."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import healpy
import numpy as np
import pytest
import torch

from dustmap.residual.surveys import SurveyRows, learn_surveys
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.ingest import ingest
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.compare.stars import compare_stars
from pipelines.config import FitConfig, SimulateConfig, load_config
from pipelines.fit import fit, mapping
from pipelines.model.problem import Inference, Problem
from pipelines.run.folder import read_run
from pipelines.run.held_out import read_held_out
from pipelines.simulate import simulate
from pipelines.view.embedding import rendered
from pipelines.view.page import TEMPLATES, WORDS
from pipelines.view.record import read_record

COARSE = ["box.spacing=50", "box.x=[-50,400]", "box.y=[-50,200]", "box.z=[-50,200]"]
SMALL = [*COARSE, "inference.samples=4", "data.holdout=0.2"]


def catalogue(count: int, seed: int, zero: float, slope: float) -> Stars:
    """Stars of one survey behind a screen."""
    rng = np.random.default_rng(seed)
    l, b = rng.uniform(0, 20, count), rng.uniform(0, 20, count)  # noqa: E741
    distance = rng.uniform(250, 390, count)
    true = 1 + 0.6 * np.sin(l / 3) * np.cos(b / 3) + 1e-3 * distance
    return Stars(
        l=l,
        b=b,
        distance=distance,
        extinction=zero + slope * true + 0.03 * rng.standard_normal(count),
        extinction_error=np.full(count, 0.03),
    )


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two surveys, the second one biased."""
    folder = tmp_path_factory.mktemp("surveys")
    for name, *given in (("first", 700, 1, 0.0, 1.0), ("second", 500, 2, 0.3, 0.8)):
        write_stars(folder / f"{name}.parquet", catalogue(*given), overwrite=False)
    sources = [folder / "first.parquet", folder / "second.parquet"]
    ingest(sources, folder / "both.parquet", declare_band="A_V")
    return folder / "both.parquet"


def test_the_engine_svi_refuses_several_surveys(joined: Path, tmp_path: Path) -> None:
    settings = ["inference.engine=svi", "box.spacing=200"]
    with pytest.raises(InputError, match="svi"):
        fit(joined, tmp_path / "run", load_config(FitConfig, overrides=settings))


def test_rows_keep_the_name_of_their_survey(joined: Path, tmp_path: Path) -> None:
    stars = read_stars(joined)
    assert stars.survey is not None
    names, counts = np.unique(stars.survey, return_counts=True)
    assert dict(zip(names, counts)) == {"first": 700, "second": 500}
    # Joined again with a third catalogue, they are three.
    third = joined.with_name("third.parquet")
    write_stars(third, catalogue(60, 3, 0.0, 1.0), overwrite=False)
    ingest([joined, third], tmp_path / "all.parquet", declare_band="A_V")
    again = read_stars(tmp_path / "all.parquet").survey
    assert set(again) == {"first", "second", "third"}
    # A single catalogue has no such column, unless it is mapped.
    ingest([third], tmp_path / "one.parquet", declare_band="A_V")
    assert read_stars(tmp_path / "one.parquet").survey is None


@pytest.mark.slow
def test_laws_of_three_surveys_of_a_mock_galaxy_are_found() -> None:
    exact = {"stars": 9000, "seed": 3, "errors": {"parallax": 0.0}}
    config = load_config(SimulateConfig, settings=exact)
    stars = simulate(config).stars
    rng, survey = np.random.default_rng(1), np.arange(len(stars)) % 3
    zero, slope, factor = np.array([[0, 0.1, -0.2], [1, 1.1, 0.85], [1, 1, 2.0]])
    true, error = stars.extra["extinction_true"], stars.extinction_error
    assert error is not None
    noise = factor[survey] * error * rng.standard_normal(len(stars))
    rows = SurveyRows(
        directions=torch.tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.tensor(stars.distance),
        extinction=torch.tensor(zero[survey] + slope[survey] * true + noise),
        error=torch.tensor(error),
        distance_std=torch.tensor(stars.distance_std),
        survey=torch.tensor(survey),
    )
    generator = torch.Generator().manual_seed(1)
    laws = learn_surveys(rows, ("one", "two", "half"), 0, generator)
    assert [law.zero for law in laws] == pytest.approx(zero.tolist(), abs=0.02)
    assert [law.slope for law in laws] == pytest.approx(slope.tolist(), abs=0.02)
    assert [law.factor for law in laws] == pytest.approx(factor.tolist(), rel=0.1)


def test_stars_of_one_place_are_held_out_together(joined: Path) -> None:
    read = read_stars(joined)
    stars = read.select(np.arange(len(read)))
    # The second survey has the first fifty stars of the first one, almost in place.
    for name in ("l", "b", "distance"):
        getattr(stars, name)[700:750] = getattr(stars, name)[:50]
    moved = replace(stars, l=stars.l + 0.01 * (np.arange(len(stars)) >= 700))
    place = moved.places()
    np.testing.assert_array_equal(place[700:750], place[:50])
    config = load_config(FitConfig, overrides=SMALL)
    parts = moved.split(config, torch.Generator().manual_seed(1), place)
    folds = (parts.train, parts.validation, parts.test)
    assert sorted(np.concatenate(folds)) == list(range(len(stars)))
    for one, other in itertools.combinations(folds, 2):
        assert not set(place[one]) & set(place[other])
    assert len(parts.test) == pytest.approx(240, abs=10)
    alone = replace(moved, survey=None).places()
    pixels = healpy.ang2pix(256, moved.l, moved.b, nest=True, lonlat=True)
    for number in range(3):
        own = alone == alone[number]
        assert set(pixels[own]) == {pixels[number]}
        assert np.ptp(np.log(moved.distance[own])) < np.log(1.2)
    scaled = replace(moved, survey=None, distance=moved.distance / 8)
    np.testing.assert_array_equal(scaled.places(), alone)


def test_stars_join_the_nearest_star_of_a_smaller_survey_in_any_order() -> None:
    random = np.random.default_rng(4)
    count = 3000
    stars = Stars(
        l=random.uniform(0, 2, count),
        b=random.uniform(0, 2, count),
        distance=10 ** random.uniform(2.8, 3.0, count),
        survey=np.repeat(["many", "some", "few"], [2000, 900, 100]),
    )
    place, rows = stars.places(), random.permutation(count)
    moved = np.empty(count, np.int64)
    moved[rows] = stars.select(rows).places()
    pairs = np.unique(np.stack([place, moved]), axis=1)
    assert pairs.shape[1] == len(np.unique(place)) == len(np.unique(moved))
    # A star next to one of the smallest survey has its place.
    few = np.flatnonzero(stars.survey == "few")
    near = replace(stars, **{name: getattr(stars, name).copy() for name in "lb"})
    near.l[:100], near.b[:100] = stars.l[few] + 1e-4, stars.b[few]
    near.distance[:100] = stars.distance[few]
    found = near.places()
    np.testing.assert_array_equal(found[:100], found[few])


def test_a_joined_map_is_on_the_scale_of_the_reference(
    joined: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, problems = load_config(FitConfig, overrides=SMALL), []
    engine = mapping.run_engine

    def kept(problem: Problem) -> Inference:
        problems.append(problem)
        return engine(problem)

    monkeypatch.setattr(mapping, "run_engine", kept)
    monkeypatch.setattr("pipelines.run.kriged.FEWEST", np.inf)
    fit(joined, tmp_path / "run", config)
    largest = np.bincount(read_stars(joined).places()).max()
    assert f"the largest with {largest} stars" in "".join(capsys.readouterr())
    first, second = json.loads((tmp_path / "run" / "run.json").read_text())["summary"][
        "surveys"
    ]
    assert first["name"] == "first"
    assert (first["zero"], first["slope"]) == pytest.approx((0, 1))
    at = second["zero"] + 1.3 * (second["slope"] - 1)
    assert at == pytest.approx(0.3 - 1.3 * 0.2, abs=0.02)
    # Samples draw the calibration of the second survey.
    stars, errors = problems[-1].stars, problems[-1].shared_errors
    assert stars.survey is not None and errors is not None
    own = torch.tensor(stars.survey == "second")
    assert errors.shape == (len(stars), 2)
    assert not errors[~own].any()
    assert float(errors[own, 0].abs().max()) < 3 * second["zero_error"]
    assert bool((errors[own].norm(dim=1) > 0).all())
    held = read_held_out(tmp_path / "run")
    assert held is not None
    # New stars of these surveys are calibrated like those that were fitted.
    run = read_run(tmp_path / "run")
    compared = compare_stars(run, read_stars(joined)).numbers
    assert compared["all"]["stars"] == len(held)
    assert compared["all"]["rmse"] == pytest.approx(held.rmse, rel=1e-3)
    for level in compared["all"]["coverage"]:
        if level["level"] == 0.68:
            assert level["held"] == pytest.approx(
                run.summary["held_out"]["coverage_68"], abs=0.03
            )
    for survey in (None, np.full(1200, "third")):
        with pytest.raises(InputError, match="first, second"):
            compare_stars(run, replace(read_stars(joined), survey=survey))
    truth = 1 + 0.6 * np.sin(held.l / 3) * np.cos(held.b / 3) + 1e-3 * held.distance
    assert np.median(held.predicted["mean"] - truth) == pytest.approx(0, abs=0.015)
    record = read_record(tmp_path / "run")
    page = rendered(TEMPLATES, "record.html", run=record, band="A_V", **WORDS)
    (table,) = [t for t in page.split("<table>") if '<th scope="col">survey</th>' in t]
    assert re.findall(r'<th scope="row">(\w+)</th>', table) == ["first", "second"]


def test_the_reference_is_a_survey_with_enough_stars(
    joined: Path, tmp_path: Path
) -> None:
    few = joined.with_name("few.parquet")
    write_stars(few, catalogue(20, 4, 0.0, 1.0), overwrite=False)
    ingest([joined, few], tmp_path / "all.parquet", declare_band="A_V")
    for name in ("nobody", "few"):
        config = load_config(FitConfig, overrides=[*SMALL, f"model.reference={name}"])
        with pytest.raises(InputError, match="first"):
            fit(tmp_path / "all.parquet", tmp_path / "run", config)
