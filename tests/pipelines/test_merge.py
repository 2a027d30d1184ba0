"""Merged stars say what their members say together, no more and no less."""

from __future__ import annotations

import healpy
import numpy as np
import pytest

from dustmap.functionals import DistanceMarginalizedIntegrals
from dustmap.grid import Grid, Torus
from dustmap.models.means import ConstantMean
from dustmap.tori import Tori
from pipelines.base.errors import InputError
from pipelines.catalog.merging import Cells, merge_rows, parse_cells
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.observations import noise_of, sight_lines
from pipelines.model.plan import Plan

Columns = dict[str, np.ndarray]


def one_cell(n: int, *, seed: int = 0, **columns: np.ndarray) -> Columns:
    """``n`` stars in one pixel of nside 16 and one bin of 100 pc."""
    rng = np.random.default_rng(seed)
    l, b = healpy.pix2ang(16, 700, nest=True, lonlat=True)  # noqa: E741
    return {
        "l": l + rng.uniform(-0.5, 0.5, n),
        "b": b + rng.uniform(-0.5, 0.5, n),
        "distance": rng.uniform(405.0, 495.0, n),
        "extinction": np.full(n, 0.8),
        "extinction_error": np.full(n, 0.1),
        **columns,
    }


CELL = Cells(nside=16, width=100.0)


def test_the_formulas_hold_without_excess_scatter() -> None:
    rng = np.random.default_rng(2)
    n = 6
    stars = one_cell(
        n,
        extinction_error=rng.uniform(0.1, 0.3, n),
        distance_error=rng.uniform(5.0, 60.0, n),
    )
    merged, _ = merge_rows(stars, CELL)
    error, d = stars["distance_error"], stars["distance"]
    density = 0.8 / np.median(d)
    w = 1 / (stars["extinction_error"] ** 2 + (density * error) ** 2)
    w /= w.sum()
    mean = w @ d
    expected = {
        "distance": mean,
        "extinction": 0.8,
        "extinction_error": np.sqrt(w**2 @ stars["extinction_error"] ** 2),
        "distance_error": np.sqrt(w @ (error**2 + (d - mean) ** 2)),
        "mean_distance_error": np.sqrt(w**2 @ error**2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-12, err_msg=name)


def test_errors_of_means_are_honest_where_structure_scatters_the_members() -> None:
    rng = np.random.default_rng(3)
    pulls = []
    for seed in range(400):
        scattered = 0.8 + rng.normal(0, 0.05, 20) + rng.normal(0, 0.2, 20)
        stars = one_cell(20, seed=seed, extinction=scattered)
        stars["extinction_error"][:] = 0.05
        merged, outlying = merge_rows(stars, CELL)
        assert outlying <= 2
        most = merged["members"].argmax()
        error = merged["extinction_error"][most]
        pulls.append((merged["extinction"][most] - 0.8) / error)
    # With the stated errors alone they would scatter by 4.1.
    assert 0.9 < np.std(pulls) < 1.2


@pytest.mark.parametrize("n", [2, 3, 12])
def test_an_outlier_stays_by_itself_and_poisons_nothing(n: int) -> None:
    rng = np.random.default_rng(n)
    stars = one_cell(n, extinction=0.8 + 0.05 * rng.normal(size=n))
    stars["extinction"][1] = 50.0
    merged, outlying = merge_rows(stars, CELL)
    alone = merged["members"] == 1
    assert outlying == (2 if n == 2 else 1)
    assert (merged["extinction"] == 50.0).sum() == 1
    assert merged["extinction_error"][merged["extinction"] == 50.0] == 0.1
    assert merged["members"].sum() == n
    if n > 2:
        assert (~alone).sum() == 1
        rest = merged["extinction"][~alone] - 0.8
        assert np.abs(rest) < 5 * merged["extinction_error"][~alone]


def test_a_star_alone_stays_as_it_is() -> None:
    rng = np.random.default_rng(5)
    stars = one_cell(1, distance_error=np.array([30.0]))
    far = {name: np.concatenate([c, c]) for name, c in stars.items()}
    far["distance"][1] += 100 * rng.integers(1, 5)
    merged, _ = merge_rows(far, CELL)
    for name, column in far.items():
        np.testing.assert_allclose(merged[name], column, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(merged["mean_distance_error"], [30.0, 30.0])
    np.testing.assert_array_equal(merged["members"], [1, 1])


def test_cells_are_pixels_times_bins_whatever_the_order_of_the_rows() -> None:
    rng = np.random.default_rng(6)
    n = 3000
    stars = one_cell(n, l=rng.uniform(0, 20, n), distance=rng.uniform(0.1, 1000, n))
    stars["l"][::2] += 340.0
    merged, _ = merge_rows(stars, Cells(nside=8, width=100.0))
    pixel = healpy.ang2pix(8, stars["l"] % 360, stars["b"], nest=True, lonlat=True)
    cells = {(p, int(d // 100)) for p, d in zip(pixel, stars["distance"], strict=True)}
    assert len(merged["l"]) == len(cells) and merged["members"].sum() == n
    mixed = rng.permutation(n)
    again, _ = merge_rows(
        {name: c[mixed] for name, c in stars.items()},
        Cells(nside=8, width=100.0),
    )
    for name, column in merged.items():
        np.testing.assert_allclose(again[name], column, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("text", ["256", "100,5pc", "8,-5pc", "8,5mag", "8,40"])
def test_malformed_cells_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected NSIDE,WIDTH"):
        parse_cells(text)
    assert parse_cells(" 256, 0.025kpc ") == Cells(nside=256, width=25.0)
    assert str(parse_cells("256,25pc")) == "256,25pc"


def exponential(x: np.ndarray, z: np.ndarray, scale: float, std: float) -> np.ndarray:
    distance = np.linalg.norm(x[:, None] - z[None], axis=2)
    return std**2 * np.exp(-distance / scale)


def voxel_lengths(stars: Columns, centres: np.ndarray, size: float) -> np.ndarray:
    """Share of each sight line in each voxel [pc], by its nodes every 2 pc."""
    l, b = np.deg2rad(stars["l"]), np.deg2rad(stars["b"])  # noqa: E741
    towards = np.stack([np.cos(b) * np.cos(l), np.cos(b) * np.sin(l), np.sin(b)], 1)
    low = centres.min(axis=0) - size / 2
    count = np.rint((centres.max(axis=0) - low) / size).astype(int)
    W = np.zeros((len(l), len(centres)))
    nodes = 250
    for row, (u, d) in enumerate(zip(towards, stars["distance"], strict=True)):
        place = np.floor(((np.arange(nodes) + 0.5) / nodes * d * u[:, None]).T - low)
        index = np.clip((place // size).astype(int), 0, count - 1)
        np.add.at(W[row], np.ravel_multi_index(tuple(index.T), count), d / nodes)
    return W


def posterior(
    stars: Columns, W: np.ndarray, K: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a density with prior mean 1e-3 [mag/pc], dense."""
    gain = np.linalg.solve(W @ K @ W.T + np.diag(variance), W @ K).T
    mean = 1e-3 + gain @ (stars["extinction"] - 1e-3 * W.sum(axis=1))
    return mean, K - gain @ W @ K


@pytest.mark.parametrize(
    ("cells", "erring", "typical", "worst"),
    [
        ("32,15pc", False, 0.2, 0.8),
        ("32,15pc", True, 0.2, 0.8),
        ("64,10pc", False, 0.1, 0.3),
    ],
)
def test_the_posterior_is_that_of_the_unmerged_stars(
    cells: str, erring: bool, typical: float, worst: float
) -> None:
    """Up to 500 pc in voxels of 50 pc; pixels are 15 or 7.6 pc wide at the far end.

    Tolerances are in standard deviations of the posterior, of all voxels root mean
    square and of the worst one. The standard deviations themselves agree within 10%.
    """
    rng = np.random.default_rng(8)
    n, size = 2500, 50.0
    axes = (np.arange(0, 500, size), np.arange(-100, 100, size))
    grid = np.meshgrid(axes[0], axes[1], axes[1], indexing="ij")
    centres = np.stack([g.ravel() for g in grid], axis=1) + size / 2
    K = exponential(centres, centres, 150.0, 4e-4)
    stars = {
        "l": rng.uniform(-9.0, 9.0, n) % 360,
        "b": rng.uniform(-9.0, 9.0, n),
        "distance": rng.uniform(50.0, 480.0, n),
        "extinction_error": rng.uniform(0.03, 0.15, n),
    }
    density = 1e-3 + np.linalg.cholesky(K + 1e-14 * np.eye(len(K))) @ rng.normal(
        size=len(K)
    )
    W = voxel_lengths(stars, centres, size)
    stars["extinction"] = W @ density + stars["extinction_error"] * rng.normal(size=n)
    variance = stars["extinction_error"] ** 2
    if erring:
        stars["distance_error"] = rng.uniform(2.0, 20.0, n)
        shift = 1e-3 * stars["distance_error"]
        stars["extinction"] += shift * rng.normal(size=n)
        variance = variance + shift**2
    mean, covariance = posterior(stars, W, K, variance)
    merged, _ = merge_rows(stars, parse_cells(cells))
    assert len(merged["l"]) < 0.95 * n
    variance = merged["extinction_error"] ** 2
    if erring:
        variance = variance + (1e-3 * merged["mean_distance_error"]) ** 2
    V = voxel_lengths(merged, centres, size)
    again, covariance_again = posterior(merged, V, K, variance)
    std = np.sqrt(np.diag(covariance))
    away = (again - mean) / std
    ratio = np.sqrt(np.diag(covariance_again)) / std
    assert np.abs(away).max() < worst and np.sqrt(np.mean(away**2)) < typical
    assert ratio.min() > 0.95 and ratio.max() < 1.1


def test_a_fit_averages_over_the_spread_and_counts_the_error_of_the_mean() -> None:
    rng = np.random.default_rng(9)
    n = 40
    spread, own = np.full(n, 100.0), rng.uniform(5.0, 10.0, n)
    stars = Stars(
        l=rng.uniform(0, 360, n),
        b=rng.uniform(-5, 5, n),
        distance=np.full(n, 1000.0),
        extinction=np.full(n, 1.0),
        extinction_error=np.full(n, 1e-9),
        distance_error=spread,
        mean_distance_error=own,
    )
    grid = Grid(shape=(9, 9, 9), spacing=(400.0,) * 3, origin=(-1600.0,) * 3)
    plan = Plan(
        tori=Tori(tori=(Torus(grid=grid, shape=(16,) * 3),)),
        kernel="matern12",
        lengthscale=(600.0,) * 3,
        std=1.0,
        mean=ConstantMean(value=1e-3),
        common_noise=0.0,
    )
    lines, noise = sight_lines(plan, stars), noise_of(plan, stars, FitConfig())
    assert isinstance(lines, DistanceMarginalizedIntegrals)
    np.testing.assert_array_equal(lines.spread, spread)
    assert noise.blur is not None and noise.blur_scale is not None
    blur = noise.blur_scale * plan.mean.observed(noise.blur)
    np.testing.assert_allclose(blur, 1e-3 * own, rtol=1e-6)
    np.testing.assert_allclose(stars.variance(1e-3), (1e-3 * own) ** 2, rtol=1e-6)
