"""Each experiment of the papers runs in its smallest size; oracles for its engines."""

import gzip
import importlib
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from matplotlib.image import imread

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues
from dustmap.gp.exact import ExactGP
from dustmap.grid import Grid
from dustmap.kernels import Matern32, Matern52

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "scripts/paper"
FLIGHT_COLUMNS = (
    "plane_age,distance,air_time,dep_time_min,arr_time_min,day_of_week,day_of_month,"
    "month,arr_delay"
)


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    """The folder of the scripts on the path, as Python puts it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Runs a script in its smallest size and returns its record."""

    def run(name, *arguments, figure=True):
        words = [name, "--quick", "--output", str(tmp_path), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        assert (tmp_path / f"{name}.md").read_text().startswith("**A smoke run")
        if figure:
            assert imread(tmp_path / f"{name}.png").shape[1] > 800
        return json.loads((tmp_path / f"{name}.json").read_text())

    return run


def here(record):
    return {entry["what"]: entry["here"] for entry in record["comparisons"]}


def test_pcg_needs_a_small_share_of_the_iterations_of_cg(quick, tmp_path):
    record = quick("pcg_vs_cg")
    small, large, *_ = record["tables"]["Iterations"]
    assert (small["M"], large["M"]) == (625, 2500)
    assert large["PCG / CG"] < small["PCG / CG"] == small["PCG"] / small["CG"] < 0.4
    stated = [entry["paper"] for entry in record["comparisons"]]
    assert stated == ["< 0.18", None, "< 0.045", None]
    # What a smoke run does not solve is not filled with the paper's figure.
    assert record["comparisons"][2]["here"] is None
    assert "| not run |" in (tmp_path / "pcg_vs_cg.md").read_text()


def test_the_share_falls_with_the_number_of_points(quick):
    rows = quick("preconditioner")["tables"]["Iterations"]
    assert len(rows) == 2 * 4 * 3
    rough = [
        row["r"]
        for row in rows
        if (row["kernel"], row["lengthscale"]) == ("Matérn 1/2", 0.05)
    ]
    assert rough == sorted(rough, reverse=True) and rough[-1] < 0.1


def test_features_of_every_method_have_the_dense_inner_products(generator):
    from whitening_time import CHOLESKY, PCG, TORUS, prepare

    from dustmap.covariance import inducing_covariance

    size = 60
    grid = Grid(shape=(size,), spacing=(1 / (size - 1),), origin=(0.0,))
    kernel = Matern32(lengthscale=2 / size, variance=0.1)
    at = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    for name in (PCG, CHOLESKY, TORUS):
        method = prepare(name, kernel, grid)
        cross = inducing_covariance(method.kernel, PointValues(at), method.points)
        features, _, _ = method.features(cross)
        points = method.points
        K = method.kernel(points[:, None, :] - points[None, :, :])
        dense = cross @ torch.linalg.solve(K, cross.mT)
        torch.testing.assert_close(features @ features.mT, dense, rtol=1e-8, atol=1e-11)


def test_whitening_is_timed_by_all_methods(quick):
    record = quick("whitening_time", figure=False)
    (rows,) = record["tables"].values()
    for row in rows:
        assert all(row[name] > 0 for name in ("PCG (Toeplitz)", "torus", "Cholesky"))
        if (row["kernel"], row["lengthscale / spacing"]) != ("squared-exponential", 3):
            assert row["iterations"] <= 4
    first, second, *_ = record["comparisons"]
    assert (first["paper"], second["paper"]) == ("1.95", "8.11")
    assert first["here"] > 0 and second["here"] is None


def test_derivatives_help_and_all_methods_are_the_exact_gp(quick):
    found = here(quick("derivative_gp"))
    for what in ("rmse", "uncertainty"):
        for method in ("HIP-GP", "SVGP"):
            ratio = float(found[f"{what}, {method} / exact GP"])
            assert ratio == pytest.approx(1, abs=1e-2)
        assert found[f"{what}, HIP-GP, with / without derivatives"] < 0.9


def dense_posterior(data):
    """Moments from the kernel's formula and its derivatives, without the library."""
    seen, values, _ = data.observed["with"]
    at, slopes_at = (part.places for part in seen.parts)
    x = torch.cat([at, slopes_at, data.test])[:, 0]
    order = torch.cat([torch.zeros(100), torch.ones(20), torch.zeros(100)])
    lag, square = x[:, None] - x[None, :], 0.1**2
    k = 0.5 * torch.exp(-(lag**2) / (2 * square))
    left, right = order[:, None] == 1, order[None, :] == 1
    k = torch.where(
        left & right,
        k * (1 / square - lag**2 / square**2),
        torch.where(left, -k * lag / square, torch.where(right, k * lag / square, k)),
    )
    noise = torch.where(order[:120] == 1, 0.2**2, 0.05**2)
    total = k[:120, :120] + noise.diag()
    cross = k[120:, :120]
    mean = cross @ torch.linalg.solve(total, values)
    prior = k[120:, 120:].diagonal()
    return mean, prior - (cross * torch.linalg.solve(total, cross.mT).mT).sum(dim=1)


def test_the_exact_posterior_is_that_of_the_kernels_formula():
    from derivative_gp import draw_data, predictions

    data = draw_data(3)
    mean, variance = dense_posterior(data)
    found = dict(predictions(data, 31, "with"))["exact GP"]
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-6, atol=1e-9)


def test_a_plane_field_is_mapped_better_on_more_points(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("DUSTMAP_DATA", str(tmp_path / "nowhere"))
    record = quick("spatial")
    assert record["notes"] == ["not run: us_precip_april1948.csv.gz was not found"]
    full = [r for r in record["tables"]["Fits"] if r["engine"] == "full batch"]
    assert [row["M"] for row in full] == [400, 900]
    error = [row["RMSE of the noise-free"] for row in full]
    assert error[1] < error[0] < 1 and all(row["converged"] for row in full)
    assert len(record["comparisons"]) == 6


@pytest.fixture
def plane():
    """A plane field that 100 points resolve but in part, and a kernel for it."""
    from engines import Scales
    from spatial import simulate_field

    data = simulate_field(300, 80, 5)
    return data, Scales(Matern52(lengthscale=0.15, variance=0.8), 0.2)


def test_svi_with_its_mean_solved_is_svgp(plane):
    from spatial import SOLVED, STEPS, svgp, svi

    data, scales = plane
    dense = svgp(data, scales, 10).mean
    fits = svi(data, scales, 10, 1, epochs=2, training=200, evaluation=200)
    torch.testing.assert_close(fits[SOLVED].mean, dense, rtol=1e-4, atol=1e-5)
    # The steps alone have not arrived, and nearer to it after more of them.
    few = (fits[STEPS].mean - dense).norm()
    more = svi(data, scales, 10, 1, epochs=20, training=200, evaluation=200)
    assert 1e-4 < (more[STEPS].mean - dense).norm() < few


def test_stopping_early_changes_the_prediction_until_rows_converge(plane):
    from spatial import stopped_early, svgp

    data, scales = plane
    dense = svgp(data, scales, 10).mean
    errors = [
        float((stopped_early(data, scales, 10, n).mean - dense).norm())
        for n in (1, 4, 100)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 1e-4


def test_the_simulated_plane_has_its_variance_lengthscale_and_noise():
    from spatial import simulate_field

    data = simulate_field(20_000, 5_000, 3)
    truth = data.test.truth
    assert float((data.test.values - truth).std()) == pytest.approx(0.3, rel=0.05)
    assert float(truth.std()) == pytest.approx(1.0, rel=0.05)
    assert float(data.train.values.mean()) == pytest.approx(0, abs=1e-12)
    again = simulate_field(20_000, 5_000, 3)
    torch.testing.assert_close(again.train.values, data.train.values, rtol=0, atol=0)
    # Matérn-5/2 one lengthscale apart: (1 + √5 + 5/3) exp(−√5).
    lag = torch.cdist(data.test.inputs, data.test.inputs) * 75
    near = torch.nonzero(((lag - 1).abs() < 0.1).triu())
    product = truth[near[:, 0]] * truth[near[:, 1]]
    expected = (1 + 5**0.5 + 5 / 3) * np.exp(-(5**0.5))
    assert float(product.mean()) == pytest.approx(expected, abs=0.06)


def test_the_full_batch_predicts_as_well_as_svgp(plane):
    from spatial import on_torus, svgp

    data, scales = plane
    found, dense = on_torus(data, scales, 16, 1), svgp(data, scales, 16)
    assert found.converged
    torch.testing.assert_close(found.mean, dense.mean, rtol=0.1, atol=0.05)


@pytest.mark.slow
def test_dust_of_every_engine_errs_less_on_more_points(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("DUSTMAP_DATA", str(tmp_path / "nowhere"))
    record = quick("dust")
    assert record["notes"] == ["not run: ananke_5k.csv.gz was not found"]
    for engine, stars in (("full batch", 400), ("SVGP", 400), ("HIP-GP", 100)):
        few, many = (
            row
            for row in record["tables"]["Fits"]
            if (row["engine"], row["N"]) == (engine, stars)
        )
        assert few["M"] < many["M"] and many["MSE [mag²]"] < few["MSE [mag²]"]
    same = here(record)["MAE [mag], HIP-GP over SVGP on the same points (worst)"]
    assert float(same) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["dust", "spatial", "airline", "ciq_svgp"])
def test_a_missing_folder_is_one_line_and_status_2(name, quick, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        quick(name, "--data", tmp_path / "absent")
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_stars_of_the_galaxy_are_behind_its_dust():
    from dust import galaxy_config, row_of, simulate_galaxy
    from engines import Fit

    from pipelines.cubes.cube import truth_extinction
    from pipelines.simulate import simulate

    data = simulate_galaxy(30, 150, 5, spacing=75.0)
    cube = simulate(galaxy_config(180, 5, 75.0)).truth
    x, y, z = 1000 * data.test.inputs.numpy().T
    distance = np.sqrt(x**2 + y**2 + z**2)
    true = truth_extinction(
        cube,
        np.degrees(np.arctan2(y, x)),
        np.degrees(np.arcsin(z / distance)),
        distance,
    )
    np.testing.assert_allclose(data.test.truth, true, rtol=5e-3)
    noise, sigma = data.test.values - data.test.truth, data.test.noise.sqrt()
    assert float((noise / sigma).std()) == pytest.approx(1, rel=0.2)
    assert float(sigma.median()) == pytest.approx(0.02, rel=0.2)
    few = data.shortened(10, 3)
    torch.testing.assert_close(few.train.values, data.train.values[:10])
    torch.testing.assert_close(few.test.inputs, data.test.inputs[:3])
    # Scores of the truth and a known error.
    variance = torch.full_like(data.test.truth, 0.3**2)
    found = Fit(data.test.truth + 0.5, variance, 0.16)
    row = row_of(data, "one", (2, 2, 2), found)
    assert row["MAE [mag]"] == pytest.approx(0.5)
    assert row["MSE [mag²]"] == pytest.approx(0.25)
    spread = (0.3**2 + data.test.noise + 0.16).sqrt()
    expected = scipy.stats.norm(data.test.values, spread).logpdf(found.mean)
    assert row["log likelihood"] == pytest.approx(expected.mean())


def test_stars_of_the_sample_have_the_papers_noise(tmp_path):
    from dust import read_ananke

    random = np.random.default_rng(1)
    table = np.column_stack([random.normal(size=(1_000, 3)), np.arange(1_000.0)])
    file = tmp_path / "stars.csv"
    file.write_text("x,y,z,e\n" + table_of(table[:, :3], table[:, 3]))
    data, other = (read_ananke(file, 700, 200, seed) for seed in (3, 4))
    assert (len(data.train), len(data.test)) == (700, 200)
    for part, again in ((data.train, other.train), (data.test, other.test)):
        torch.testing.assert_close(part.inputs, again.inputs)
        sigma = part.noise.sqrt()
        assert 0.0025 <= float(sigma.min()) < float(sigma.max()) <= 0.0075
        scaled = (part.values - part.truth) / sigma
        assert float(scaled.std()) == pytest.approx(1, rel=0.1)
        assert not torch.equal(part.values, again.values)


def test_svgp_of_rays_is_the_dense_optimum_of_its_bound():
    from dust import rowwise, simulate_galaxy
    from engines import SVGP, Scales

    from dustmap.covariance import functional_variance, inducing_covariance

    data = simulate_galaxy(150, 30, 5, spacing=75.0)
    kernel, shape, nodes = Matern32(lengthscale=0.9, variance=1.0), (4, 4, 3), 6
    found = rowwise(data, Scales(kernel, 0.05), shape, nodes, SVGP)
    rule = GaussLegendre(count=nodes)
    train, test = (LineIntegrals(part.inputs, rule) for part in (data.train, data.test))
    points = data.grid(*shape).points()
    L = torch.linalg.cholesky(kernel(points[:, None] - points[None]))
    seen, wanted = (
        torch.linalg.solve_triangular(
            L, inducing_covariance(kernel, rays, points).mT, upper=False
        ).mT
        for rays in (train, test)
    )
    noise = data.train.noise + 0.05
    Lambda = torch.eye(48).double() + (seen / noise[:, None]).mT @ seen
    right = (seen / noise[:, None]).mT @ data.train.values
    mean = wanted @ torch.linalg.solve(Lambda, right)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-7, atol=1e-9)
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
    np.testing.assert_allclose(found.variance, variance, rtol=1e-6)


def test_variances_of_largest_evidence_are_a_maximum(generator):
    from engines import best_variances

    at = torch.rand(60, 1, generator=generator, dtype=torch.float64)
    values = (9 * at[:, 0]).sin() + 0.2 * torch.randn(60, generator=generator)
    K = Matern52(lengthscale=0.3)(at[:, None] - at[None]).numpy()

    def evidence(variance, noise):
        law = scipy.stats.multivariate_normal(cov=variance * K + noise * np.eye(60))
        return law.logpdf(values)

    best, variance, noise = best_variances(K, values.numpy(), np.zeros(60))
    assert best == pytest.approx(evidence(variance, noise))
    for step in (0.8, 1.25):
        assert evidence(step * variance, noise) < best
        assert evidence(variance, step * noise) < best
    best, variance, none = best_variances(K, values.numpy(), np.full(60, 0.05))
    assert none == 0 and best == pytest.approx(evidence(variance, 0.05))


def test_roads_are_fitted_better_on_more_points(quick):
    record = quick("road3d", figure=False)
    rmse = {
        (row["engine"], row["M"]): row["RMSE"]
        for row in record["tables"]["Means over splits"]
    }
    coarse, fine = (rmse["full batch (torus)", m] for m in (899, 3_596))
    assert fine < 0.9 * coarse < 0.9 * rmse["SVGP", 64] < 0.5
    assert rmse["SGPR", 48] < 0.6
    # None of the engines had the paper's number of points.
    assert here(record)["RMSE, HIP-GP, M = 36,000"] is None
    assert here(record)["RMSE, as many points as help: M = 3,596"] == fine


def test_the_full_batch_of_roads_is_the_exact_gp_on_a_fine_grid(generator):
    from engines import Scales
    from road3d import Roads, on_torus

    at = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(300, generator=generator, dtype=torch.float64)
    height = (5 * at[:, 0]).sin() + (7 * at[:, 1]).cos() + 0.3 * noise
    data = Roads(at=at, height=height).split(42)
    scales = Scales(Matern52(lengthscale=0.4), 0.1)
    points, fit = on_torus(data, scales, 400, 1, samples=64)
    assert points == pytest.approx(400, rel=0.05)
    exact = ExactGP(
        scales.kernel, data.train.functionals(), data.train.values, noise=scales.noise
    ).predict(data.test.functionals())
    off = (fit.mean - exact.mean) / exact.variance.sqrt()
    ratio = fit.variance / exact.variance
    assert float(off.square().mean()) < 0.02**2
    assert 0.85 < float(ratio.mean()) < 1.15


def test_the_simulated_relief_has_its_variogram_and_noise():
    from road3d import simulate_roads

    roads = simulate_roads(30_000, 600, 4)
    assert roads.at.min() >= 0 and roads.at.max() <= 1
    rows = torch.randperm(30_000, generator=torch.Generator().manual_seed(1))[:3_000]
    at, height = roads.at[rows], roads.height[rows]
    # Matérn-1/2: half the mean square of differences is 1 − exp(−20 d), and 0.05².
    for lag in (0.005, 0.02):
        near = torch.nonzero((torch.cdist(at, at) - lag).abs() < 0.1 * lag)
        difference = height[near[:, 0]] - height[near[:, 1]]
        half = float((difference**2).mean() / 2)
        assert half == pytest.approx(1 - np.exp(-20 * lag) + 0.05**2, rel=0.15)
    same = (torch.cdist(at, at) == 0).triu(1).nonzero()
    difference = height[same[:, 0]] - height[same[:, 1]]
    assert float((difference**2).mean() / 2) == pytest.approx(0.05**2, rel=0.3)


def test_splits_of_roads_are_apart_in_the_papers_shares_and_standardised():
    from road3d import Roads

    places = torch.arange(1_000.0).double()
    roads = Roads(at=torch.stack([places, places], 1), height=3 * places + 7)
    data, other = roads.split(42), roads.split(43)
    train, test = data.train, data.test
    assert (len(train), len(test)) == (640, 200)
    assert float(train.values.mean()) == pytest.approx(0, abs=1e-12)
    assert float(train.values.std()) == pytest.approx(1)
    order = np.random.RandomState(42).permutation(1_000)
    np.testing.assert_array_equal(train.inputs[:, 0], order[:640])
    np.testing.assert_array_equal(test.inputs[:, 0], order[800:])
    assert not torch.equal(train.inputs, other.train.inputs)
    # One line through all rows stays one in the units of the split.
    rise = test.values - train.values[:200]
    run = test.inputs - train.inputs[:200]
    torch.testing.assert_close(rise, run[:, 0] * rise[0] / run[0, 0])


def test_scores_of_known_moments_are_right(generator):
    from engines import Fit
    from road3d import Roads

    at = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    data = Roads(at=at, height=(5 * at[:, 0]).sin()).split(42)
    zero = torch.zeros_like(data.test.values)
    square = float(data.test.values.square().mean())
    found = Fit(zero, zero + 0.75, 0.25).log_density(data)
    assert found == pytest.approx(-0.5 * (np.log(2 * np.pi) + square))


def table_of(inputs, values):
    lines = [",".join(map(str, row)) for row in np.column_stack([inputs, values])]
    return "\n".join(lines) + "\n"


def small_sets(folder, rows=300):
    """A folder with an arm and precipitation in the layout of the shipped files."""
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 8))
    wave = np.sin(2 * x[:, 1])
    noisy = wave + 0.1 * random.standard_t(3, rows)
    months = [np.full(rows, 1996), random.integers(1, 13, rows)]
    rain = np.column_stack([x[:, 1:3], *months])
    for file, text in {
        "kin40k.csv.gz": table_of(x, wave),
        "colorado_monthly_precip.csv.gz": "lon,lat,year,month,ppt_cm\n"
        + table_of(rain, noisy),
    }.items():
        (folder / file).write_bytes(gzip.compress(text.encode()))
    return ["--data", folder]


def test_ciq_and_cholesky_end_alike_and_are_timed(quick, tmp_path):
    record = quick("ciq_svgp", *small_sets(tmp_path))
    pairs = record["tables"]["Both whitenings, the same steps"]
    fixed = [abs(row["CIQ - Cholesky"]) for row in pairs if not row["learning"]]
    assert len(fixed) == 4 and max(fixed) < 2e-3
    assert max(abs(row["CIQ - Cholesky"]) for row in pairs) < 0.1
    assert len(record["tables"]["One step of learning"]) == 8
    roots = record["tables"]["Errors of roots"]
    assert all(row["error"] <= row["bound"] for row in roots)
    assert roots[2]["error"] < 1e-2 * roots[0]["error"]


def test_scores_are_those_of_the_dense_posterior():
    """With a step of one on all rows the bound is at its optimum (Titsias 2009)."""
    from ciq_svgp import Model, train
    from data import standardised

    from dustmap.inference.svi import SvgpSettings
    from dustmap.likelihoods import Gaussian

    random = np.random.default_rng(3)
    inputs = random.normal(size=(300, 2))
    values = np.sin(2 * inputs[:, 0]) + 0.3 * random.normal(size=300)
    data = standardised("wave", inputs, values, 1)
    x, y = data.train.inputs, data.train.values
    points, kernel = x[::10], Matern52(lengthscale=0.7)
    settings = SvgpSettings(
        batch_size=len(y), steps=2, natural_rate=1.0, decay_at=(), learn=()
    )
    start = Model(kernel, Gaussian(variance=0.3))
    _, found = train("Cholesky", data, points, start, settings, 1)

    def k(x, z):
        r = 5**0.5 * torch.cdist(x, z) / 0.7
        return (1 + r + r**2 / 3) * torch.exp(-r)

    K = k(points, points) + 1e-4 * torch.eye(len(points), dtype=torch.float64)
    K_un, cross = k(points, x), k(points, data.test.inputs)
    A = K + K_un @ K_un.mT / 0.3
    mean = cross.mT @ torch.linalg.solve(A, K_un @ y) / 0.3
    inner = torch.linalg.inv(K) - torch.linalg.inv(A)
    variance = 1.3 - (cross * (inner @ cross)).sum(dim=0)
    expected = torch.distributions.Normal(mean, variance.sqrt())
    nll = -float(expected.log_prob(data.test.values).mean())
    assert found == pytest.approx(nll, rel=1e-6)


def test_rows_are_split_and_standardised_by_those_to_train_on():
    from data import standardised

    inputs = np.column_stack([np.arange(100.0), np.full(100, 7.0)])
    data = standardised("ramp", inputs, 3 * inputs[:, 0] + 1, 5)
    train, test = data.train, data.test
    assert (len(train), len(test)) == (75, 15)
    assert float(train.inputs[:, 0].mean()) == pytest.approx(0, abs=1e-12)
    assert float(train.values.std(correction=0)) == pytest.approx(1)
    assert not train.inputs[:, 1].any() and not test.inputs[:, 1].any()
    # One line through all rows: those to test on have the same units.
    torch.testing.assert_close(test.inputs[:, 0], test.values)
    seen = {round(float(v), 9) for v in (*train.values, *test.values)}
    assert len(seen) == 90
    assert len(data.shortened(10, 4).train) == 10


@pytest.mark.parametrize(
    ("script", "reader", "text", "message"),
    [
        ("ciq_svgp", "read_kin40k", "1,2,3\n" * 20, "3 columns, expected 8 inputs"),
        ("ciq_svgp", "read_kin40k", "1,2,3,4,5,6,7,8,9\n" * 9, "9 rows, too few"),
        ("ciq_svgp", "read_kin40k", "1,2,dear\n3,x,4\n", "3 columns"),
        ("ciq_svgp", "read_kin40k", "1,2,3\n4,5\n", "no table of numbers"),
        ("ciq_svgp", "read_kin40k", "1,2,3,x,5,6,7,8,9\n" * 20, "are not finite"),
        ("airline", "read_flights", "plane_age,distance\n1,2\n", "no column air_time"),
        ("airline", "read_flights", f"{FLIGHT_COLUMNS}\n" + "1,2,3,4,5,6,7,8,9\n" * 9,
         "9 rows, too few"),
    ],
)  # fmt: skip
def test_faulty_files_are_refused(tmp_path, script, reader, text, message):
    from pipelines.base.errors import InputError

    file = tmp_path / "table.csv.gz"
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match=message):
        getattr(importlib.import_module(script), reader)(file, 1)


def flight_file(folder, rows=900, missing=0):
    """Delays that swing with the hour of departure, which no linear model follows."""
    random = np.random.default_rng(1)
    inputs = random.uniform(1, 1_000, (rows, 8))
    hour = FLIGHT_COLUMNS.split(",").index("dep_time_min")
    delay = 30 * np.sin(inputs[:, hour] / 100) + random.normal(0, 3, rows)
    lines = [",".join(map(str, row)) for row in np.column_stack([inputs, delay])]
    lines += ["," + line.partition(",")[2] for line in lines[:missing]]
    file = folder / "flights.csv"
    file.write_text("\n".join([FLIGHT_COLUMNS, *lines]) + "\n")
    return file


def test_delays_are_compared_on_the_same_flights(quick, tmp_path):
    record = quick("airline", "--file", flight_file(tmp_path, missing=7))
    rows = {(r["model"], r["M or N"]): r["RMSE [min]"] for r in
            record["tables"]["Models"]}  # fmt: skip
    models = [("constant", None), ("linear", None), ("exact GP", 100)]
    assert list(rows) == [*models, ("SVGP", 20), ("SVGP", 40)]
    # 30 |sin| has an RMSE of 21.
    assert 18 < rows["constant", None] < 24
    expected = rows["SVGP", 40] / rows["linear", None]
    assert here(record)["RMSE of SVGP (M = 40) / linear"] == pytest.approx(expected)
    assert "7 rows left out" in record["notes"][0]
