"""Mock galaxies: the density against closed forms, the catalogue against its truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars
from pipelines.config import SimulateConfig, load_config
from pipelines.cubes.cube import truth_extinction
from pipelines.formats.zarr import read_zarr
from pipelines.simulate import simulate
from pipelines.simulate.dust import Cavity, Cloud, draw_clouds
from pipelines.simulate.turbulence import draw_turbulence

SMALL = [
    "stars=4000",
    "truth.half_x=600",
    "truth.half_y=500",
    "truth.half_z=200",
    "truth.spacing=25",
    "dust.correlation_length=80",
    "dust.clouds=12",
    "dust.cavities=3",
]
PLAIN = [*SMALL, "dust.turbulence=0", "dust.clouds=0", "dust.cavities=0"]


def configure(*overrides, base=SMALL):
    return load_config(SimulateConfig, None, [*base, *overrides])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mock")
    config = configure("errors.outliers=0.02")
    mock = simulate(config)
    mock.write(folder / "stars.parquet", truth=folder / "truth.zarr")
    return folder, config, mock


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# The dust


def draw_one_grid(shape, spacing, **settings):
    axes = [h * np.arange(n) for n, h in zip(shape[::-1], spacing[::-1], strict=True)]
    (field,), variance = draw_turbulence([axes], **settings)
    assert variance == [1.0]
    return field


def test_without_structure_the_dust_is_an_exponential_disc():
    config = configure("dust.sun_height=0", base=PLAIN)
    cube = simulate(config, dust_scale_height=80).truth
    density = cube.arrays["density"]
    k, j, i = 3, 11, 40
    radius = np.hypot(8200 - cube.x[i], cube.y[j])
    expected = 1.2e-3 * np.exp(-(radius - 8200) / 4000 - np.abs(cube.z[k]) / 80)
    assert density[k, j, i] == pytest.approx(expected, rel=1e-6)
    up = truth_extinction(cube, np.zeros(1), np.full(1, 90.0), np.full(1, 150.0))
    column = 1.2e-3 * 80 * (1 - np.exp(-150 / 80))
    # A linear interpolant of a convex function lies above it, by h²/12 of its slope.
    assert up[0] == pytest.approx(column * (1 + (25 / 80) ** 2 / 12), rel=1e-3)


@pytest.mark.parametrize("slope", [11 / 3, 5.0])
def test_the_turbulence_has_the_correlation_of_its_spectrum(slope):
    length, lag = 6.0, 6

    def covariance(r):
        # The radial Fourier integral, in one dimension and without a grid.
        def integrand(k):
            power = (1 + (k * length) ** 2) ** (-slope / 2) * np.exp(-(k**2))
            return k**2 * np.sinc(k * r / np.pi) * power

        return integrate.quad(integrand, 0, 8, limit=200)[0]

    moments = []
    for seed in range(10):
        field = draw_one_grid(
            (64, 60, 56),
            (1.0, 1.0, 1.0),
            correlation_length=length,
            slope=slope,
            stirring=0.0,
            rng=np.random.default_rng(seed),
        )
        products = [
            np.mean(field.take(range(n - lag), axis) * field.take(range(lag, n), axis))
            for axis, n in enumerate(field.shape)
        ]
        moments.append([np.mean(field**2), *products])
    variance, *lagged = np.mean(moments, axis=0)
    assert variance == pytest.approx(1, abs=0.05)
    expected = covariance(lag) / covariance(0)
    np.testing.assert_allclose(lagged, expected, atol=0.05)


def test_every_value_of_the_stirred_turbulence_is_standard_normal():
    values = np.concatenate(
        [
            draw_one_grid(
                (12, 30, 30),
                (20.0, 20.0, 20.0),
                correlation_length=50.0,
                slope=11 / 3,
                stirring=0.5,
                rng=np.random.default_rng(seed),
            ).ravel()
            for seed in range(20)
        ]
    )
    assert values.mean() == pytest.approx(0, abs=0.05)
    assert values.std() == pytest.approx(1, abs=0.03)
    assert stats.kurtosis(values) == pytest.approx(0, abs=0.15)


@pytest.mark.parametrize("stirring", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_nested_turbulence_has_the_variance_and_correlation_of_its_spectrum(stirring):
    length, lags = 40.0, np.array([0, 2, 4, 8])
    coarse = 8.0 * np.arange(-8, 9)
    grids = [(coarse / n,) * 3 for n in (1, 2, 4)]

    def covariance(r, cut):
        def integrand(k):
            power = (1 + (k * length) ** 2) ** (-11 / 6) * np.exp(-((k * cut) ** 2))
            return k**2 * np.sinc(k * r / np.pi) * power

        return integrate.quad(integrand, 0, 8 / cut, limit=400)[0]

    products = []
    for seed in range(40):
        fields, variances = draw_turbulence(
            grids,
            correlation_length=length,
            slope=11 / 3,
            stirring=stirring,
            rng=np.random.default_rng(seed),
        )
        own = [np.mean(field**2) for field in fields]
        lagged = [
            np.mean(fields[2][:, :, : 17 - n] * fields[2][:, :, n:]) for n in lags
        ]
        products.append([*own, *lagged])
    found = np.mean(products, axis=0)
    error = np.std(products, axis=0) / np.sqrt(len(products))
    total = covariance(0, 2.0)
    shares = np.array([covariance(0, cut) / total for cut in (8.0, 4.0, 2.0)])
    np.testing.assert_allclose(variances, shares, rtol=0.02)
    assert (np.abs(found[:3] - shares) < 4 * error[:3] + 0.01).all()
    if not stirring:
        expected = [covariance(2.0 * lag, 2.0) / total for lag in lags]
        assert (np.abs(found[3:] - expected) < 4 * error[3:] + 0.01).all()


def test_stars_beyond_the_complete_distance_are_as_many_in_every_doubling():
    limits = {"complete_within": 30, "magnitude_limit": 40}
    flat = {"star_scale_height": 1e5, "star_scale_length": 1e6}
    config = configure("errors.parallax=1e-6", "stars=20000")
    stars = simulate(config, **limits, **flat).stars
    counts, _ = np.histogram(stars.extra["distance_true"], [0, 30, 50, 100, 200])
    # Of r² min(1, (30 / r)³), which the box holds to 200 pc.
    expected = np.array([1 / 3, *np.log([50 / 30, 2, 2])])
    ratio = counts / expected
    assert (np.abs(ratio / ratio.mean() - 1) < 4 / np.sqrt(counts)).all()


@pytest.fixture
def axes():
    x = np.arange(-200.0, 201, 5)
    return x, x[8:-8], x[20:-20]


def test_a_cloud_has_its_stated_extinction(axes):
    density = np.zeros([len(axis) for axis in axes[::-1]])
    cloud = Cloud(beads=((30.0, -20.0, 10.0),), radius=15.0, extinction=1.2)
    cloud.add_to(density, axes)
    k, j = np.searchsorted(axes[2], 10), np.searchsorted(axes[1], -20)
    assert density[k, j].sum() * 5 == pytest.approx(1.2, rel=1e-3)
    assert density[k, j, np.searchsorted(axes[0], 30)] == density.max()


def test_a_filament_has_its_stated_extinction_across(axes):
    density = np.zeros([len(axis) for axis in axes[::-1]])
    beads = tuple((15.0 * i, 0.0, 0.0) for i in range(-7, 8))
    Cloud(beads=beads, radius=15.0, extinction=0.8).add_to(density, axes)
    across = density[len(axes[2]) // 2, :, len(axes[0]) // 2].sum() * 5
    assert across == pytest.approx(0.8, rel=1e-3)


def test_a_cavity_is_empty_inside_a_shell_and_leaves_the_rest(axes):
    density = np.ones([len(axis) for axis in axes[::-1]])
    Cavity(centre=(0.0, 0.0, 0.0), radius=50.0).carve(density, axes)
    line = density[len(axes[2]) // 2, len(axes[1]) // 2]
    at = {r: line[np.searchsorted(axes[0], r)] for r in (0, 25, 55, 105)}
    assert at[0] == pytest.approx(0.08)
    assert at[25] < 0.2
    assert at[55] > 1.5
    assert at[105] == 1


def test_clouds_lie_where_the_dust_is(axes):
    density = np.zeros([len(axis) for axis in axes[::-1]])
    density[30, 10:14, 50] = 1.0
    clouds = draw_clouds(density, axes, 40, 10.0, np.random.default_rng(0))
    first = np.array([cloud.beads[0] for cloud in clouds])
    assert np.abs(first - [axes[0][50], axes[1][11:13].mean(), axes[2][30]]).max() < 13
    assert sum(len(cloud.beads) > 1 for cloud in clouds) == 20
    assert all(10 <= cloud.radius <= 25 for cloud in clouds)


# The stars


def test_the_truth_of_every_star_follows_from_the_stored_density(made):
    folder, config, mock = made
    stars = read_stars(folder / "stars.parquet")
    cube = read_zarr(folder / "truth.zarr")
    lost = mock.losses
    unseen = lost.too_faint + lost.dimmed + lost.poor_parallax + lost.surplus
    assert len(stars) == config.stars == lost.drawn - unseen
    true = stars.extra["distance_true"]
    np.testing.assert_allclose(
        truth_extinction(cube, stars.l, stars.b, true, step=2.0),
        stars.extra["extinction_true"],
        rtol=2e-3,
        atol=1e-6,
    )
    positions = stars.positions() * (true / stars.distance)[:, None]
    np.testing.assert_allclose(
        cube.sample("density", positions), stars.extra["density_true"], rtol=1e-6
    )


def test_both_files_say_where_they_come_from(made):
    folder, config, _ = made
    stars, cube = read_stars(folder / "stars.parquet"), read_zarr(folder / "truth.zarr")
    for meta in (stars.meta, cube.meta):
        assert meta["configuration"]["seed"] == config.seed
        assert meta["configuration"]["dust"]["correlation_length"] == 80
    assert stars.units["density_true"] == "mag pc-1"
    assert stars.units["distance_true"] == "pc"
    assert len(cube.meta["clouds"]) == 12
    assert len(cube.meta["cavities"]) == 3
    assert cube.arrays["density"].min() > 0


def test_errors_are_what_they_are_said_to_be(made):
    stars = read_stars(made[0] / "stars.parquet")
    outlier = stars.extra["outlier"]
    score = (stars.extinction - stars.extra["extinction_true"]) / stars.extinction_error
    assert abs(outlier.mean() - 0.02) < 4 * np.sqrt(0.02 / 4000)
    assert stats.kstest(score[~outlier], "norm").pvalue > 1e-3
    assert score[outlier].std() > 10
    assert np.median(stars.extinction_error) == pytest.approx(0.05, rel=0.05)
    magnitude = stars.extra["magnitude"]
    slope = np.polyfit(magnitude, np.log10(stars.extinction_error), 1)[0]
    assert slope == pytest.approx(0.1, abs=0.01)
    parallax = (1000 / stars.distance - 1000 / stars.extra["distance_true"]) / 0.01
    assert stats.kstest(parallax, "norm").pvalue > 1e-3
    np.testing.assert_allclose(
        stars.distance_error, 0.01 * stars.distance**2 / 1000, rtol=1e-9
    )


def test_the_same_seed_gives_the_same_files(made, tmp_path):
    folder, config, _ = made
    simulate(config).write(tmp_path / "stars.parquet", truth=tmp_path / "truth.zarr")
    assert files(tmp_path) == files(folder)


def test_a_larger_catalogue_is_drawn_in_the_same_galaxy():
    few, many = (simulate(configure(f"stars={count}")) for count in (100, 1000))
    densities = (mock.truth.arrays["density"] for mock in (few, many))
    np.testing.assert_array_equal(*densities)
    np.testing.assert_array_equal(few.stars.l, many.stars.l[:100])


def test_the_sample_is_limited_in_magnitude_and_loses_dimmed_stars():
    config = configure("dust.density=3e-3", "stars=3000")
    dimmed = simulate(config, magnitude_limit=9)
    clear = simulate(config, magnitude_limit=9, dimming=0)
    assert dimmed.losses.dimmed > 0 == clear.losses.dimmed
    assert 8.9 < dimmed.stars.extra["magnitude"].max() < 9
    behind = []
    for mock in (dimmed, clear):
        far = mock.stars.extra["distance_true"] > 400
        behind.append(mock.stars.extra["extinction_true"][far].mean())
    assert behind[0] < 0.8 * behind[1]


def test_stars_follow_their_disc_and_their_luminosities():
    # With nothing lost the sample is the stars as they are.
    galaxy = {"magnitude_limit": 99, "star_scale_height": 90}
    mock = simulate(configure("stars=20000"), **galaxy)
    stars = mock.stars
    assert mock.losses.too_faint == mock.losses.dimmed == 0
    farther = stars.extra["distance_true"] / stars.distance
    positions = stars.positions() * farther[:, None]
    disc = stats.truncexpon(b=(200 - 20) / 90, scale=90)
    height = -(positions[:, 2] + 20)
    below = height[height > 0]
    assert stats.kstest(below, disc.cdf).pvalue > 1e-3
    share = (1 - np.exp(-180 / 90)) / (2 - np.exp(-180 / 90) - np.exp(-220 / 90))
    assert len(below) / 20000 == pytest.approx(share, abs=0.015)
    inner, outer = (np.sum(np.sign(positions[:, 0]) == sign) for sign in (1, -1))
    assert inner / outer == pytest.approx(np.exp(600 / 2600), rel=0.06)
    absolute = (
        stars.extra["magnitude"]
        - 0.84 * stars.extra["extinction_true"]
        - 5 * np.log10(stars.extra["distance_true"] / 10)
    )
    rate = 0.2 * np.log(10)
    growth = (np.exp(rate * (absolute + 1)) - 1) / (np.exp(rate * 8) - 1)
    assert stats.kstest(growth, "uniform").pvalue > 1e-3


def test_poor_parallaxes_are_lost_and_counted():
    mock = simulate(configure("errors.parallax=0.5"))
    stars = mock.stars
    assert mock.losses.poor_parallax > 0
    assert (stars.distance > 0).all()
    assert (stars.distance / stars.distance_error).min() > 5 * (1 - 1e-12)


def test_a_galaxy_without_a_visible_star_is_refused(monkeypatch):
    monkeypatch.setattr("pipelines.simulate.stars._BARREN", 2)
    with pytest.raises(InputError, match="only 0 of 4000 stars"):
        simulate(configure(), magnitude_limit=-5)


def test_what_has_no_key_is_an_argument_and_recorded():
    mock = simulate(configure("stars=50"), scatter=0.0, growth=0.0)
    np.testing.assert_array_equal(mock.stars.extinction_error, 0.05)
    recorded = mock.stars.meta["configuration"]
    assert recorded["stars"] == 50
    assert recorded["scatter"] == 0.0 and recorded["slope"] == 11 / 3
    for wrong, said in (
        ({"slopes": 5.0}, "slopes: unknown key .did you mean slope?"),
        ({"slope": 2.0}, "slope: input should be greater than 3, got 2"),
    ):
        with pytest.raises(InputError, match=said):
            simulate(configure("stars=50"), **wrong)


# The files


def test_an_existing_output_is_refused_before_any_work(command, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.simulate.make_dust", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "truth.zarr").write_text("mine")
    said = command("simulate -o stars.parquet --truth truth.zarr")
    assert said.exit_code == 2 and "truth.zarr exists" in said.output
    assert files(tmp_path) == {"truth.zarr": b"mine"}


def test_files_that_cannot_be_written_are_refused(made, tmp_path):
    mock, both = made[2], tmp_path / "both"
    with pytest.raises(InputError, match="both for the stars and for the truth"):
        mock.write(both, truth=both)
    with pytest.raises(InputError, match="not a folder"):
        mock.write(tmp_path / "no" / "stars.parquet")
    mock.write(both)
    with pytest.raises(InputError, match="exists"):
        mock.write(both)
    mock.write(both, overwrite=True)
    assert len(read_stars(both)) == 4000 and list(tmp_path.iterdir()) == [both]
