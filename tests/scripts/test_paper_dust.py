"""The dust experiment: its engines agree where theory says so, and improve with M."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from matplotlib.image import imread

from dustmap.covariance import functional_covariance
from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.kernels import Matern32

FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(folder, monkeypatch, *arguments):
    import dust

    chosen = ["dust", "--quick", "--output", str(folder), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", chosen)
    dust.main()
    return json.loads((folder / "dust.json").read_text())


@pytest.fixture(scope="module")
def galaxy_record(tmp_path_factory):
    """A smoke run where there is no Ananke sample, and its folder."""
    folder = tmp_path_factory.mktemp("dust")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setenv("DUSTMAP_DATA", str(folder / "nowhere"))
        return quick(folder, patch), folder


def fits(record, engine, stars):
    """Rows of an engine by M."""
    return [
        row
        for row in record["tables"]["Fits"]
        if (row["engine"], row["N"]) == (engine, stars)
    ]


def test_a_smoke_run_needs_no_file_and_says_what_is_missing(galaxy_record):
    record, folder = galaxy_record
    assert record["notes"][0].startswith("Ananke, 4,000 stars: not run")
    by_sky = {}
    for entry in record["comparisons"]:
        by_sky.setdefault("Ananke" in entry["remark"], []).append(entry)
    assert [entry["paper"] for entry in by_sky[True]][:3] == [
        "0.660",
        "0.600",
        "+0.283",
    ]
    assert all(entry["here"] is None for entry in by_sky[True])
    assert by_sky[False][0]["here"] is not None
    assert imread(folder / "dust.png").shape[1] > 1000


def test_every_engine_errs_less_on_more_points(galaxy_record):
    record, _ = galaxy_record
    for engine, stars in (("full batch", 400), ("SVGP", 400), ("HIP-GP", 100)):
        few, many = fits(record, engine, stars)
        assert few["M"] < many["M"]
        for what in ("MAE [mag]", "MSE [mag²]"):
            assert many[what] < few[what]
        assert many["log likelihood"] > few["log likelihood"]


def test_hip_gp_and_svgp_have_one_mean_on_one_grid(galaxy_record):
    record, _ = galaxy_record
    for ours, theirs in zip(
        fits(record, "HIP-GP", 100), fits(record, "SVGP", 100), strict=True
    ):
        assert ours["M"] == theirs["M"]
        assert ours["MAE [mag]"] == pytest.approx(theirs["MAE [mag]"], rel=1e-3)


@pytest.mark.data
def test_the_sample_is_fitted_as_the_dense_gp_has_it(tmp_path, monkeypatch, data_dir):
    import dust
    from dust_data import ANANKE

    only = {ANANKE: dust.PLANS["quick"][ANANKE]}
    monkeypatch.setattr(dust, "data_sets", lambda options, plans: (
        [dust.ananke(options.data, 300, 100, options.seed)], []))  # fmt: skip
    monkeypatch.setitem(dust.PLANS, "quick", only)
    record = quick(tmp_path, monkeypatch, "--data", data_dir)
    (exact,) = fits(record, "dense GP", 300)
    assert fits(record, "full batch", 300)[-1]["MAE [mag]"] < 1.2 * exact["MAE [mag]"]
    assert fits(record, "SVGP", 300)[-1]["MAE [mag]"] < 1.2 * exact["MAE [mag]"]


def test_a_missing_folder_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        quick(tmp_path, monkeypatch, "--data", tmp_path / "absent")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture(scope="module")
def sky():
    """A few stars of a simulated galaxy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        from dust_data import galaxy

        return galaxy(150, 30, 5, spacing=75.0)


def test_stars_of_the_galaxy_are_where_its_dust_is(sky):
    from dust_data import galaxy_config

    from pipelines.simulate import simulate

    galaxy = simulate(galaxy_config(180, 5, 75.0)).truth
    density = galaxy.sample("density", 1000 * sky.train.positions)
    np.testing.assert_allclose(sky.train.density, 1000 * density, rtol=1e-6)
    noise = sky.seen.values - sky.train.extinction
    assert np.std(noise / sky.seen.sigma) == pytest.approx(1, rel=0.2)
    assert np.median(sky.seen.sigma) == pytest.approx(0.02, rel=0.2)
    few = sky.shortened(10, 3)
    np.testing.assert_array_equal(few.seen.values, sky.seen.values[:10])
    np.testing.assert_array_equal(few.test.positions, sky.test.positions[:3])


def test_svgp_is_the_dense_optimum_of_its_bound(sky):
    from dust_engines import SVGP, Scales, rowwise

    from dustmap.covariance import functional_variance, inducing_covariance

    kernel, shape, nodes = Matern32(lengthscale=0.9, variance=1.0), (4, 4, 3), 6
    found = rowwise(sky, Scales(kernel=kernel, common=0.05), shape, nodes, SVGP)
    rule = GaussLegendre(count=nodes)
    train, test = (
        LineIntegrals(torch.as_tensor(sample.positions), rule)
        for sample in (sky.train, sky.test)
    )
    points = sky.grid(shape).points()
    L = torch.linalg.cholesky(kernel(points[:, None] - points[None]))
    seen, wanted = (
        torch.linalg.solve_triangular(
            L, inducing_covariance(kernel, rays, points).mT, upper=False
        ).mT
        for rays in (train, test)
    )
    noise = sky.variance + 0.05
    Lambda = torch.eye(48).double() + (seen / noise[:, None]).mT @ seen
    mean = wanted @ torch.linalg.solve(Lambda, (seen / noise[:, None]).mT @ sky.values)
    np.testing.assert_allclose(found.extinction_mean, mean, rtol=1e-7, atol=1e-9)
    # Blocks of 2 × 2 × 2 neighbours, the last one along z of 2 × 2 × 1.
    index = torch.arange(48).reshape(shape)
    S = torch.zeros(48, 48).double()
    for x in (0, 2):
        for y in (0, 2):
            for z in (0, 2):
                own = index[x : x + 2, y : y + 2, z : z + 2].reshape(-1)
                S[own[:, None], own] = torch.linalg.inv(Lambda[own[:, None], own])
    variance = functional_variance(kernel, test) - (wanted**2).sum(1)
    variance = variance + torch.einsum("ni,ij,nj->n", wanted, S, wanted)
    np.testing.assert_allclose(found.extinction_std**2, variance, rtol=1e-6)


def test_scales_of_the_bound_are_better_than_their_start(sky):
    from dust_engines import SVGP, Scales, learn_scales, rowwise

    start, shape, nodes = Matern32(lengthscale=0.2, variance=1.0), (5, 5, 4), 6
    learnt = learn_scales(sky, start, shape, nodes, 150, 10)
    assert float(learnt.kernel.lengthscale) == pytest.approx(1.5)
    bounds = [
        rowwise(sky, scales, shape, nodes, SVGP).facts["bound"]
        for scales in (learnt, Scales(kernel=start), Scales(kernel=learnt.kernel))
    ]
    assert bounds[0] > max(bounds[1:])


def test_the_full_batch_is_near_the_dense_gp_on_a_grid_that_resolves_the_field(sky):
    from dust_engines import dense, full_batch

    kernel = Matern32(lengthscale=1.5, variance=1.0)
    # Noise that what the grid leaves over is small beside.
    seen = replace(sky.seen, sigma=np.full(150, 0.3))
    sky = replace(sky, seen=seen)
    exact = dense(sky, kernel, 12)
    found = full_batch(sky, kernel, (9, 9, 5), 12, 32)
    off = (found.extinction_mean - exact.extinction_mean) / exact.extinction_std
    assert np.sqrt(np.mean(off**2)) < 0.3
    ratio = found.extinction_std / exact.extinction_std
    assert 0.8 < np.median(ratio) < 1.3


def test_the_quicker_dense_covariance_is_that_of_the_library(generator):
    from dense_covariance import cross_covariance, symmetric_covariance

    kernel = Matern32(lengthscale=(0.1, 0.2, 0.3), variance=0.7)
    ends = torch.rand(50, 3, generator=generator, dtype=torch.float64)
    rays = LineIntegrals(ends, GaussLegendre(count=4))
    both = Stack([rays, PointValues(ends[:7])])
    torch.testing.assert_close(
        symmetric_covariance(kernel, both), functional_covariance(kernel, both, both)
    )
    torch.testing.assert_close(
        cross_covariance(kernel, both, rays), functional_covariance(kernel, both, rays)
    )


def test_scores_of_a_known_error_are_right(sky):
    from ananke_data import Observed, Sample
    from dust import row_of
    from dust_engines import Prediction

    truth = Sample(
        positions=np.zeros((4, 3)), extinction=np.zeros(4), density=np.arange(1.0, 5)
    )
    held = Observed(values=np.full(4, 0.5), sigma=np.full(4, 0.3))
    found = Prediction(
        extinction_mean=np.array([1.0, -1.0, 1.0, 3.0]),
        extinction_std=np.array([1.0, 1.0, 0.9, 2.0]),
        density_mean=np.array([2.0, 4.0, 6.0, 8.0]),
        density_std=np.ones(4),
        facts={"common noise [mag]": 0.4},
    )
    row = row_of(replace(sky, test=truth, held=held), "one", None, found)
    assert row["MSE [mag²]"] == 3 and row["MAE [mag]"] == pytest.approx(1.5)
    assert row["within 1 std"] == 0.5 and row["density r"] == pytest.approx(1)
    spread = np.sqrt(found.extinction_std**2 + 0.25)
    expected = scipy.stats.norm(0.5, spread).logpdf(found.extinction_mean).mean()
    assert row["log likelihood"] == pytest.approx(expected)
