"""Stars of one bin as one."""

from __future__ import annotations

import json
from dataclasses import replace

import healpy
import interrupted
import numpy as np
import one_cloud
import pytest
import torch

from dustmap.distributed.group import Group
from pipelines.base.geometry import Box
from pipelines.catalog.merging import merged
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.compare.stars import compare_stars
from pipelines.config import FitConfig, load_config
from pipelines.fit import fit
from pipelines.fit.stars import FittedStars
from pipelines.run.folder import read_run

COUNT = 20_000


def sky(*, errors: bool = True, survey: bool = False) -> Stars:
    """Stars around the sky with an extinction of their distance, in mag/kpc."""
    random = np.random.default_rng(2)
    distance = 10 ** random.uniform(1.5, 3, COUNT)
    sigma = random.uniform(0.05, 0.1, COUNT)
    return Stars(
        l=random.uniform(0, 360, COUNT),
        b=np.degrees(np.arcsin(random.uniform(-1, 1, COUNT))),
        distance=distance,
        distance_error=0.05 * distance if errors else None,
        extinction=1e-3 * distance + sigma * random.standard_normal(COUNT),
        extinction_error=sigma,
        survey=random.choice(["one", "two"], COUNT) if survey else None,
    )


@pytest.mark.parametrize("errors", [False, True])
def test_bins_are_as_many_as_allowed_and_hold_all_stars(errors):
    stars = sky(errors=errors)
    found, fewest = merged([stars], 5000)
    assert 2500 < len(found) <= 5000
    assert fewest >= 2
    assert found.merged.min() == pytest.approx(1.0)
    # Less than all by unequal errors and weights.
    assert found.merged.sum() == pytest.approx(COUNT, rel=0.2)
    again, _ = merged([stars], COUNT)
    assert len(found) < len(again) <= COUNT


def test_means_have_the_scatter_that_they_state():
    # Exact distances: the extinction of a bin is that of its mean distance.
    found, _ = merged([sky(errors=False)], 5000)
    z = (found.extinction - 1e-3 * found.distance) / found.extinction_error
    assert abs(z.mean()) < 0.05
    # Weights of a Student-T distribution leave 1.08.
    assert 0.95 < z.std() < 1.04
    assert found.extinction_error.mean() < 0.7 * sky().extinction_error.mean()


def test_a_bin_of_two_stars_has_their_weighted_means():
    stars = Stars(
        l=np.array([10.0, 10.01, 200.0]),
        b=np.array([0.0, 0.01, 0.0]),
        distance=np.array([100.0, 101.0, 300.0]),
        distance_error=np.array([5.0, 7.0, 9.0]),
        extinction=np.array([0.3, 0.4, 1.0]),
        extinction_error=np.array([0.1, 0.2, 0.1]),
    )
    found, _ = merged([stars], 2)
    two, one = found.l.argsort()
    # Weights of outliers differ little from one.
    p = found.merged[two]
    assert 1 < p < 2
    weight = (found.extinction[two] - 0.4) / (0.3 - 0.4)
    assert weight == pytest.approx(0.8, abs=0.05)
    assert found.distance[two] == pytest.approx(101 - weight)
    variance = weight * (25 + (1 - weight) ** 2) + (1 - weight) * (49 + weight**2)
    assert found.distance_error[two] == pytest.approx(variance**0.5)
    assert found.distance_std[two] == pytest.approx((variance / p) ** 0.5)
    assert found.l[one] == pytest.approx(200.0)
    assert found.extinction[one] == pytest.approx(1.0)
    assert found.extinction_error[one] == pytest.approx(0.1)


def test_outliers_hardly_move_a_mean():
    stars = sky(errors=False)
    wrong = stars.extinction.copy()
    random = np.random.default_rng(5)
    wrong[::50] += random.exponential(1.5, len(wrong[::50]))
    plain, _ = merged([stars], 1500)
    found, _ = merged([replace(stars, extinction=wrong)], 1500)
    # Unweighted means would move by 0.03, those of a Student-T distribution by 0.0014.
    assert abs((found.extinction - plain.extinction).mean()) < 0.001


def test_any_order_of_rows_gives_the_same_bins():
    stars = sky(survey=True)
    rows = np.random.default_rng(1).permutation(COUNT)
    one, two = (merged([each], 5000)[0] for each in (stars, stars.select(rows)))
    for name, column in one.columns().items():
        if name == "survey":
            assert (column == two.survey).all()
        else:
            np.testing.assert_allclose(column, two.columns()[name])
    assert set(one.survey) == {"one", "two"}


def test_a_small_field_is_counted_exactly():
    # In a field of a degree pixels are few, and an estimate from some would be wrong.
    random = np.random.default_rng(3)
    for l in (10.2, 46.0):  # noqa: E741
        place = {"l": l + random.uniform(0, 1, COUNT), "b": random.uniform(0, 1, COUNT)}
        found, _ = merged([replace(sky(), **place)], 3000)
        assert 1000 < len(found) <= 3000


def test_outliers_are_sought_among_stars_of_one_survey():
    stars = sky()
    few = np.arange(COUNT) % 20 == 0
    assert stars.extinction is not None
    names = np.where(few, "few", "many")
    apart = replace(stars, survey=names, extinction=stars.extinction + 2.0 * few)
    found, _ = merged([apart], 5000)
    for name in ("few", "many"):
        before, after = (
            np.sum(each.extinction_error[each.survey == name] ** -2.0)
            for each in (apart, found)
        )
        assert after == pytest.approx(before, rel=0.25)


@pytest.mark.parametrize("error", [1e-2, 1e-5])
def test_a_wrong_star_of_a_tiny_error_does_not_take_its_bin_over(error):
    stars = sky(errors=False)
    assert stars.extinction is not None
    extinction, sigma = stars.extinction.copy(), stars.extinction_error.copy()
    extinction[::50] += 2.0
    sigma[::50] = error
    wrong = replace(stars, extinction=extinction, extinction_error=sigma)
    # With the stated errors means are off by 0.07 and 0.5, and 18 and 10⁵ times theirs.
    # A wrong star alone in a bin keeps its error, as it does among single ones.
    found, _ = merged([wrong], 1500)
    off = found.extinction - 1e-3 * found.distance
    assert abs(off.mean()) < 0.01
    assert (off / found.extinction_error).std() < 1.2


def test_far_and_near_stars_leave_the_other_bins():
    stars = sky()
    distance = stars.distance.copy()
    distance[:2] = 1e6, 1e-3
    plain, fewest = merged([stars], 5000)
    found, again = merged([replace(stars, distance=distance)], 5000)
    assert again == fewest
    assert abs(len(found) - len(plain)) < 10
    assert found.distance.max() == pytest.approx(1e6)
    assert found.distance.min() == pytest.approx(1e-3)


def test_unknown_distance_errors_are_none_of_a_mean():
    stars = sky()
    error = stars.distance_error.copy()
    error[::3] = np.nan
    found, _ = merged([replace(stars, distance_error=error)], 5000)
    for column in found.columns().values():
        assert np.isfinite(column).all()
    single = np.full(COUNT, np.nan)
    none, _ = merged([replace(stars, distance_error=single)], COUNT)
    assert np.median(none.distance_error) < 0.01 * np.median(none.distance)


def test_bins_at_poles_and_across_the_meridian():
    four = sky().select(slice(4))
    same = {"distance": np.full(4, 100.0), "extinction": np.full(4, 0.1)}
    seam = {"l": np.array([0.0, 360.0, 359.99, 0.01]), "b": np.full(4, 0.5)}
    found, _ = merged([replace(four, **same, **seam)], 2)
    assert len(found) <= 2
    assert (np.minimum(found.l, 360 - found.l) < 0.02).all()
    pole = {"l": np.array([0.0, 90.0, 180.0, 270.0]), "b": np.full(4, 90.0)}
    found, _ = merged([replace(four, **same, **pole)], 4)
    np.testing.assert_allclose(found.b, 90.0, atol=1e-6)
    # A single star stays where it is.
    one, _ = merged([four.select(slice(1))], 1)
    for name in ("l", "b", "distance", "extinction"):
        np.testing.assert_allclose(getattr(one, name), getattr(four, name)[:1])
    assert one.merged == pytest.approx(1.0)


def test_coarsest_pixels_are_the_end():
    found, _ = merged([sky()], 1)
    assert 12 <= len(found) < 100


FEW = 300


def read(path, *settings, most=FEW):
    config = load_config(FitConfig, overrides=list(settings))
    generator = torch.Generator().manual_seed(0)
    return FittedStars.read(path, config, Group(), generator, most, path.parent)


def measured(stars):
    return set(zip(stars.distance, stars.extinction, stars.extinction_error))


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A catalogue of more stars than are fitted one by one."""
    monkeypatch.setattr("pipelines.fit.opening.most_stars", lambda *given: FEW)
    path = tmp_path / "stars.parquet"
    random = np.random.default_rng(1)
    extra = {"m": 15 + np.log10(random.uniform(size=2000)) / 0.4}
    stars = replace(one_cloud.catalogue(2000), extra=extra)
    write_stars(path, stars, overwrite=False)
    return path, stars


def test_held_out_stars_stay_single(many):
    path, stars = many
    found = read(path)
    split = found.split
    assert len(split.train) <= FEW
    held = [split.train, split.validation, split.test]
    np.testing.assert_array_equal(np.concatenate(held), np.arange(len(found.stars)))
    for rows in held[1:]:
        assert len(rows)
        single = found.stars.select(rows)
        assert (single.merged == 1).all()
        assert measured(single) <= measured(stars)
    fitted = len(stars) - sum(map(len, held[1:]))
    assert found.counts["merged"] == fitted
    assert found.fitted.merged.sum() == pytest.approx(fitted, rel=0.2)
    assert found.fitted.merged.max() > 2


def test_any_files_and_orders_of_rows_give_the_same_bins_and_held_out_stars(
    tmp_path, monkeypatch
):
    # Parts of about 170 stars, row groups of 100.
    monkeypatch.setattr("pipelines.catalog.sky_parts.BYTES", 2**27 / 170)
    monkeypatch.setattr("pipelines.catalog.tables.ROWS_PER_BATCH", 100)
    survey = np.random.default_rng(4).choice(["deep", "wide"], 2000)
    first = replace(one_cloud.catalogue(2000), survey=survey)
    first = replace(first, distance_error=0.1 * first.distance)
    mixed = first.select(np.random.default_rng(5).permutation(2000))
    write_stars(tmp_path / "one.parquet", first, overwrite=False)
    write_stars(tmp_path / "mixed.parquet", mixed, overwrite=False)
    folder = tmp_path / "parts"
    folder.mkdir()
    write_stars(folder / "a.parquet", mixed.select(slice(700)), overwrite=False)
    write_stars(folder / "b.parquet", mixed.select(slice(700, None)), overwrite=False)
    given = ["model.distance_prior=stars", "data.max_distance=600"]
    one, *others = (
        read(tmp_path / name, *given)
        for name in ("one.parquet", "mixed.parquet", folder)
    )
    assert one.counts["read"] == 2000
    assert one.counts["beyond max_distance"] > 0
    held = len(one.split.validation) + len(one.split.test)
    left = 2000 - one.counts["beyond max_distance"] - held
    assert one.counts["merged"] == left
    assert set(one.stars.survey) == {"deep", "wide"}
    for other in others:
        assert other.counts == one.counts
        for name in ("train", "validation", "test"):
            mine, its = (
                each.stars.select(getattr(each.split, name)) for each in (one, other)
            )
            ranks = [each.distance.argsort() for each in (mine, its)]
            for column, values in mine.columns().items():
                found = its.columns()[column][ranks[1]]
                if column == "survey":
                    assert (found == values[ranks[0]]).all()
                else:
                    np.testing.assert_allclose(found, values[ranks[0]], rtol=1e-9)
    assert not list(tmp_path.glob(".stars*"))


@pytest.mark.parametrize("few", [FEW, 10_000])
def test_places_are_small_where_stars_are_many(few, tmp_path):
    # Groups of eight stars within a place of 0.23 deg, but in two of 0.06 deg.
    first = one_cloud.catalogue(150)
    pixel = healpy.ang2pix(256, first.l, first.b, nest=True, lonlat=True)
    corners = 16 * np.repeat(pixel, 8) + np.tile([0, 0, 0, 0, 15, 15, 15, 15], 150)
    l, b = healpy.pix2ang(1024, corners, nest=True, lonlat=True)  # noqa: E741
    stars = replace(first.select(np.repeat(np.arange(150), 8)), l=l, b=b)
    write_stars(tmp_path / "stars.parquet", stars, overwrite=False)
    found = read(tmp_path / "stars.parquet", most=few)
    held = found.stars.select(found.split.test)
    _, counts = np.unique(held.places(), return_counts=True)
    together = 4 if few == FEW else 8
    assert np.median(counts) == together
    assert (counts % together == 0).all()


def test_stars_outside_a_given_box_take_no_bin(many):
    path, stars = many
    ends = {"x": [0, 500], "y": [-250, 250], "z": [-200, 200]}
    given = [f"box.{axis}={pair}" for axis, pair in ends.items()]
    whole, found = read(path), read(path, *given)
    lower, upper = np.transpose(list(ends.values()))
    positions = stars.positions()
    inside = ((positions >= lower) & (positions <= upper)).all(axis=1).sum()
    assert inside > FEW
    assert found.counts["merged"] == pytest.approx(0.8 * inside, rel=0.1)
    left = len(stars) - len(found.split.validation) - len(found.split.test)
    assert found.counts["outside the box"] == left - found.counts["merged"]
    box = Box(lower=tuple(lower.tolist()), upper=tuple(upper.tolist()))
    there = box.contains(whole.fitted.positions()).sum()
    assert len(found.split.train) > 2 * there
    # Few stars inside stay single.
    near = [f"box.{axis}=[-60,60]" for axis in "xyz"]
    assert read(path, *near).stars.merged is None


@pytest.mark.usefixtures("no_baseline", "one_baseline")
def test_a_run_counts_merged_stars_and_keeps_the_magnitude_limit(many, tmp_path):
    path, stars = many
    given = [f"box.{axis}={list(ends)}" for axis, ends in zip("xyz", one_cloud.BOX)]
    given += ["data.magnitude=m", "data.limit=15", "data.dimming=0.8"]
    given += ["box.spacing=140", "inference.samples=2"]
    config = load_config(FitConfig, overrides=given)
    report = fit(path, tmp_path / "run", config)
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    counts = written["summary"]["counts"]
    assert counts == report.counts
    assert counts["read"] == len(stars)
    assert counts["fitted"] <= FEW < counts["merged"]
    held = counts["held out"] + counts["for the residual"]
    assert counts["merged"] + held + counts["outside the box"] == len(stars)
    kept = read_stars(tmp_path / "run" / "stars.parquet")
    assert kept.merged.max() > 2
    # Merged stars are no unseen ones, though the run does not list them.
    run = read_run(tmp_path / "run")
    judged = compare_stars(run, stars)
    assert judged.numbers["counts"]["judged"] == counts["held out"]
    others = compare_stars(run, one_cloud.catalogue(100, seed=77))
    assert others.numbers["counts"]["judged"] == 100


@pytest.mark.usefixtures("no_baseline")
def test_a_stopped_fit_merges_the_same_stars_again(many, tmp_path):
    path, _ = many
    plain = interrupted.settings()
    whole, own = (
        interrupted.Case(source=path, output=tmp_path / name, plain=plain)
        for name in ("whole", "own")
    )
    whole.fit()
    own.stop(after=3)
    own.fit(resume=True)
    interrupted.require_same(whole.output, own.output)
