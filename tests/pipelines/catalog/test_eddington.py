"""Expected distances, against the true ones of skies with known distributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.catalog.eddington import with_expected_distances
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig
from pipelines.fit.stars import FittedStars


def measured(true: np.ndarray, error: np.ndarray, seed: int = 1) -> Stars:
    noise = np.random.default_rng(seed).standard_normal(len(true))
    zeros = np.zeros(len(true))
    return Stars(
        l=zeros,
        b=zeros,
        distance=true + error * noise,
        distance_error=error,
        extinction=zeros,
        extinction_error=zeros + 1,
    )


def test_the_closed_form_of_a_normal_distribution():
    true = np.random.default_rng(0).normal(500.0, 40.0, 400_000)
    stars = measured(true, np.full(len(true), 30.0))
    found, limited = with_expected_distances(stars)
    expected = 500 + (stars.distance - 500) * 40**2 / (40**2 + 30**2)
    near = np.abs(stars.distance - 500) < 50
    np.testing.assert_allclose(found.distance[near], expected[near], atol=3.0)
    # 40 and 30 pc together.
    np.testing.assert_allclose(found.distance_error[near], 24.0, atol=2.5)
    # One at the end of the others, of whose distances too few tell the scatter.
    assert limited <= 1


@pytest.mark.parametrize("count", [30_000, 300_000])
def test_errors_that_grow_with_true_distances_leave_no_bias(count):
    """Of a ball with an edge; relative errors differ between stars."""
    random = np.random.default_rng(3)
    true = 1000 * random.uniform(0, 1, count) ** (1 / 3) + 20
    stars = measured(true, true * random.uniform(0.02, 0.12, count))
    found, _ = with_expected_distances(stars)
    for low, high in ((200, 400), (400, 700), (900, 1000), (1020, 1150)):
        some = (stars.distance > low) & (stars.distance < high)
        before, after = (
            np.mean(each.distance[some] - true[some]) for each in (stars, found)
        )
        assert abs(before) > 4
        assert abs(after) < 0.3 * abs(before)
        scatter = np.mean((found.distance[some] - true[some]) ** 2)
        given, stated = (
            (scatter / np.mean(each.distance_error[some] ** 2)) ** 0.5
            for each in (stars, found)
        )
        assert given < 0.9
        assert given + 0.3 * (1 - given) < stated < 1.1
    apart = [np.std(each.distance - true) for each in (stars, found)]
    assert apart[1] < 0.8 * apart[0]


def test_a_few_stars_far_from_others_keep_their_errors():
    far = np.array([5000.0, 5400.0, 9000.0])
    true = np.append(np.random.default_rng(7).normal(500.0, 40.0, 20_000), far)
    stars = measured(true, np.full(len(true), 30.0))
    found, _ = with_expected_distances(stars)
    apart = stars.distance > 4000
    np.testing.assert_allclose(found.distance_error[apart], 30.0, rtol=0.1)
    np.testing.assert_allclose(found.distance[apart], stars.distance[apart], atol=6.0)


def test_parts_of_the_sky_have_their_own_distances(monkeypatch):
    """Stars end at 600 pc around one pole and at 1,000 pc around the other."""
    monkeypatch.setattr("pipelines.catalog.eddington._PART", 30_000)
    random = np.random.default_rng(6)
    north = random.permutation(np.repeat([False, True], 200_000))
    true = np.where(north, 1000, 600) * random.uniform(0, 1, len(north)) ** (1 / 3)
    stars = replace(
        measured(true, np.full(len(true), 60.0)),
        l=random.uniform(0, 360, len(true)),
        b=np.degrees(np.arcsin(random.uniform(0.9, 1, len(true)))) * (2 * north - 1),
    )
    found, _ = with_expected_distances(stars)
    # The slope of both together is wrong for each.
    edge = (stars.distance > 560) & (stars.distance < 640)
    for part in (north, ~north):
        before, after = (
            np.mean((each.distance - true)[edge & part]) for each in (stars, found)
        )
        assert abs(after) < 0.4 * abs(before)


def test_surveys_are_apart_and_exact_distances_stay():
    random = np.random.default_rng(4)
    near, far = (random.normal(at, 20.0, 20_000) for at in (300, 900))
    stars = measured(np.append(near, far), np.full(40_000, 30.0))
    stars.distance_error[::2] = 0.0
    # A histogram of cells as small would not fit any memory.
    stars.distance_error[1::4] = 1e-9
    stars = replace(stars, survey=np.repeat(["near", "far"], 20_000))
    found, _ = with_expected_distances(stars)
    np.testing.assert_array_equal(found.distance[::2], stars.distance[::2])
    np.testing.assert_array_equal(found.distance[1::4], stars.distance[1::4])
    np.testing.assert_allclose(found.distance_error[1::4], 1e-9)
    alone, _ = with_expected_distances(stars.select(np.arange(20_000)))
    np.testing.assert_array_equal(found.distance[:20_000], alone.distance)
    with pytest.raises(InputError, match="distance_error"):
        with_expected_distances(replace(stars, distance_error=None))


def test_a_fit_takes_them_on_request(tmp_path, capsys):
    true = np.random.default_rng(5).normal(500.0, 40.0, 5_000)
    stars = measured(true, np.full(len(true), 30.0))
    path = tmp_path / "stars.parquet"
    write_stars(path, stars, overwrite=False)
    for prior, expected in (
        ("flat", stars),
        ("stars", with_expected_distances(stars)[0]),
    ):
        config = FitConfig.model_validate({"model": {"distance_prior": prior}})
        read = FittedStars.read(path, config, Group(), torch.Generator(), 10_000, path)
        np.testing.assert_allclose(read.stars.distance, expected.distance)
        said = "expected distances" in capsys.readouterr().err
        assert said == (prior == "stars")
