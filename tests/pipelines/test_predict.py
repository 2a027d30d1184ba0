"""Predictions: one row per row, honest about what the map cannot know."""

import json

import numpy as np
import one_cloud
import pyarrow.parquet as pq
import pytest
import torch
from astropy.table import Table

from dustmap.functionals import PointValues
from pipelines.catalog.schema import Stars, read_table, write_stars, write_table
from pipelines.maps.places import Places
from pipelines.model.engine import rays
from pipelines.run.predict import predict_columns

KINDS = ["mean", "std", "p2_5", "p16", "p50", "p84", "p97_5"]
COLUMNS = [f"{what}_{kind}" for what in ("extinction", "density") for kind in KINDS]


@pytest.fixture(scope="module")
def places():
    """New stars in and around the box, in no order."""
    rng = np.random.default_rng(11)
    lower, upper = np.array(one_cloud.BOX).T
    ends = rng.uniform(1.3 * lower, 1.3 * upper, size=(400, 3))
    return one_cloud.at(ends, one_cloud.extinction(ends), 0.1)


@pytest.fixture(scope="module")
def columns(cloud_run, places):
    return predict_columns(cloud_run.plan, cloud_run.posterior, places)


def inside_box(stars):
    lower, upper = np.array(one_cloud.BOX).T
    x = stars.positions()
    return ((x >= lower) & (x <= upper)).all(axis=1)


def test_every_row_has_one_row_in_the_same_order(command, cloud_run, places, tmp_path):
    write_stars(tmp_path / "new.parquet", places, overwrite=False)
    output = tmp_path / "predicted.parquet"
    done = command(f"predict {cloud_run.path} {tmp_path}/new.parquet -o {output}")
    written, units, meta = read_table(output)
    inside = inside_box(places).sum()
    assert f"{len(places)} rows ({inside} inside" in done.output
    np.testing.assert_array_equal(written["source_id"], places.source_id)
    np.testing.assert_array_equal(written["distance"], places.distance)
    assert list(written)[-20:-6] == COLUMNS
    assert {units[name] for name in COLUMNS[:7]} == {"mag"}
    assert {units[name] for name in COLUMNS[7:]} == {"mag/pc"}
    assert meta["program"] == "dustmap" and meta["version"]
    assert meta["map"] == cloud_run.path.name
    with pq.ParquetFile(output) as file:
        field, description = file.schema_arrow.field("density_std"), file.metadata
    assert field.metadata[b"unit"] == b"mag/pc"
    assert json.loads(description.metadata[b"dustmap"])["meta"] == meta


def test_stars_outside_the_box_get_nan_and_inside_is_false(places, columns):
    inside = inside_box(places)
    assert 0 < inside.sum() < len(places)
    np.testing.assert_array_equal(columns["inside"], inside)
    for name in COLUMNS:
        np.testing.assert_array_equal(np.isfinite(columns[name]), inside)


def test_extinctions_agree_with_the_closed_form_within_their_errors(places, columns):
    inside = columns["inside"]
    true = one_cloud.extinction(places.positions())
    error = (columns["extinction_mean"] - true)[inside]
    assert np.sqrt(np.mean(error**2)) < 0.15 * true[inside].std()
    z = np.abs(error) / columns["extinction_std"][inside]
    assert np.mean(z < 0.9945) > 0.6 and z.max() < 5


def test_extinctions_rise_along_a_sight_line_as_the_curve_of_a_figure_does(
    positive_run, positive_store
):
    towards = one_cloud.CENTRE / np.linalg.norm(one_cloud.CENTRE)
    toward = one_cloud.at(towards[None], np.zeros(1), 0.1)
    (line,) = positive_store.lines([(toward.l[0], toward.b[0])])
    ends = line.distance[:, None] * towards
    stars = one_cloud.at(ends, np.zeros(len(ends)), 0.1)
    asked = Places.of_points(ends)
    found = positive_store.moments(asked, ("mean", "p50"), integrated=True)
    alone = predict_columns(positive_run.plan, positive_run.posterior, stars)
    for name in ("mean", "p50"):
        curve = line.arrays[name]
        assert (np.diff(curve) > 0).all()
        np.testing.assert_allclose(found[name], curve, rtol=1e-5)
        # Single places are not interpolated.
        ratio = alone[f"extinction_{name}"] / curve
        assert np.median(np.abs(ratio - 1)) < 0.01


def test_errors_contain_what_the_grid_cannot_resolve(cloud_run, places, columns):
    inside = columns["inside"]
    ends = torch.as_tensor(places.positions()[inside])
    posterior = cloud_run.posterior
    for name, functionals in (
        ("extinction", rays(cloud_run.plan, ends)),
        ("density", PointValues(ends)),
    ):
        model = posterior.model.at(functionals)
        mean = model.apply(posterior.mean)
        draws = torch.stack([model.apply(sample) for sample in posterior.samples])
        resolved = ((draws - mean) ** 2).mean(dim=0).numpy()
        whole = columns[f"{name}_std"][inside] ** 2
        assert (whole > resolved).all()
        # Off the grid's points it is no small part of the density's.
        missing = np.median((whole - resolved) / whole)
        assert missing > (0.05 if name == "density" else 1e-4)


def test_a_table_of_positions_is_enough(command, cloud_run, places, columns, tmp_path):
    bare = Stars(l=places.l, b=places.b, distance=places.distance)
    write_stars(tmp_path / "bare.parquet", bare, overwrite=False)
    line = f"predict {cloud_run.path} {tmp_path}/bare.parquet -o {tmp_path}/out.parquet"
    assert command(line).exit_code == 0
    written, _, _ = read_table(tmp_path / "out.parquet")
    assert "source_id" not in written
    off = written["extinction_mean"] - columns["extinction_mean"]
    inside = columns["inside"]
    assert (np.abs(off) < 0.01 * columns["extinction_std"])[inside].all()


def test_a_table_without_positions_is_refused(command, cloud_run, tmp_path):
    write_table(
        tmp_path / "t.parquet",
        {"l": np.zeros(2)},
        units={"l": "deg"},
        meta={},
        overwrite=False,
    )
    done = command(
        f"predict {cloud_run.path} {tmp_path}/t.parquet -o {tmp_path}/o.fits"
    )
    assert done.exit_code == 2 and "gives no position" in done.output
    assert not (tmp_path / "o.fits").exists()


def test_mapped_expressions_and_masks_are_those_of_ingest(
    command, cloud_run, places, columns, tmp_path
):
    hidden = np.arange(len(places)) % 3 == 0
    table = Table(
        {
            "my lon": places.l - 1.5,
            "E(B-V)": places.b / 2,
            "[Fe/H]": np.log10(places.distance) - 2,
            "d": np.ma.array(places.distance, mask=hidden),
        }
    )
    for name in ("a.h5", "a.parquet"):
        options = {"path": "t", "serialize_meta": True} if name == "a.h5" else {}
        table.write(tmp_path / name, **options)
        line = f"predict {cloud_run.path} {tmp_path / name} "
        line += "--map 'l=`my lon` + 3/2:deg' --map 'b=(E(B-V) + E(B-V))*1:deg' "
        logarithm = f"{line} -o {tmp_path}/{name}.log.parquet "
        done = command(f"{logarithm} --map 'distance=10**(log10(10**[Fe/H]) + 2):pc'")
        assert done.exit_code == 0, done.output
        written, _, _ = read_table(tmp_path / f"{name}.log.parquet")
        inside = columns["inside"]
        off = written["extinction_mean"] - columns["extinction_mean"]
        assert (np.abs(off) < 0.01 * columns["extinction_std"])[inside].all()
        done = command(f"{line} -o {tmp_path}/{name}.out.parquet --map distance=d:pc")
        assert done.exit_code == 0, done.output
        written, _, _ = read_table(tmp_path / f"{name}.out.parquet")
        shown = inside & ~hidden
        assert (np.isfinite(written["extinction_mean"]) == shown).all()
        # The mask is no column of the table's own.
        assert "d.mask" not in written
        assert (np.isnan(np.ma.filled(written["d"], np.nan)) == hidden).all()


def test_quantiles_of_a_gaussian_posterior_are_mean_and_one_std_around_it(columns):
    inside = columns["inside"]
    for what in ("extinction", "density"):
        mean, std = (columns[f"{what}_{k}"][inside] for k in ("mean", "std"))
        np.testing.assert_array_equal(columns[f"{what}_p50"][inside], mean)
        for name, sign in (("p16", -1), ("p84", 1)):
            found = columns[f"{what}_{name}"][inside]
            # Of Student's t with the degrees of freedom of 24 samples or more.
            wide = sign * (found - mean) / std
            assert (wide > 1 - 1e-6).all() and (wide < 1.05).all()


@pytest.fixture(scope="module")
def positive_columns(positive_run, places):
    return predict_columns(positive_run.plan, positive_run.posterior, places)


def test_quantiles_of_a_lognormal_posterior_are_positive_and_in_order(
    positive_run, positive_columns
):
    assert positive_run.plan.density == "lognormal"
    inside = positive_columns["inside"]
    for what in ("extinction", "density"):
        p16, p50, p84, mean = (
            positive_columns[f"{what}_{k}"][inside]
            for k in ("p16", "p50", "p84", "mean")
        )
        assert (p16 > 0).all() and (p16 < p50).all() and (p50 < p84).all()
        # A logarithm's quantiles lie evenly around its median, the mean above it.
        np.testing.assert_allclose(p50**2, p16 * p84, rtol=1e-6)
        assert (mean > p50).mean() > 0.9
        assert np.isnan(positive_columns[f"{what}_p50"][~inside]).all()


def test_a_lognormal_map_finds_the_closed_form_within_its_quantiles(
    places, positive_columns
):
    inside = positive_columns["inside"]
    true = one_cloud.extinction(places.positions())[inside]
    error = positive_columns["extinction_mean"][inside] - true
    assert np.sqrt(np.mean(error**2)) < 0.15 * true.std()
    p16, p84 = (positive_columns[f"extinction_{k}"][inside] for k in ("p16", "p84"))
    # The prior is far rougher than one smooth cloud: its intervals are wide, but not
    # without bound.
    assert np.mean((p16 < true) & (true < p84)) > 0.6
    assert np.median((p84 - p16) / true) < 0.6
