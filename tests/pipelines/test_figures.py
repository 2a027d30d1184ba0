"""Figures show what they were given: places, signs, scales, counts."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, LineOfSight, near_the_sun
from pipelines.figures.box import compare, density_slice, edge_on, face_on
from pipelines.figures.integrals import regridded, shared_range
from pipelines.figures.scales import colour_scale
from pipelines.figures.sightlines import lines_of_sight

X, Y, Z = (np.arange(-n, n + 1) * 250.0 for n in (12, 10, 6))


def make_cube(unit="mag pc-1", name="mean", scale=1.0):
    """One cloud at x = 300, y = -100, z = 50 pc in an asymmetric box."""
    x, y, z = (np.arange(-n, n + 1) * 50.0 for n in (8, 4, 2))
    values = np.zeros((len(z), len(y), len(x)))
    values[3, 2, 14] = 0.02 * scale
    arrays = {name: values}
    if name == "mean":
        arrays |= {"std": values + 0.001, "support": np.ones_like(values)}
        arrays["support"][..., -1] = 0.0
    return Cube(x=x, y=y, z=z, arrays=arrays, unit=unit)


def random_cube(**arrays):
    """Random densities, at least 0.5, on 17 by 9 by 5 cells of 50 pc."""
    x, y, z = (np.arange(-n, n + 1) * 50.0 for n in (8, 4, 2))
    rng = np.random.default_rng(8)
    made = {
        name: scale * (0.5 + rng.random((len(z), len(y), len(x))))
        for name, scale in arrays.items()
    }
    return Cube(x=x, y=y, z=z, arrays=made)


def wide_cube(density=1e-3):
    """Known within 1 kpc in x; a few cells of the prior beyond are enormous."""
    values = np.full((len(Z), len(Y), len(X)), density)
    support = np.zeros_like(values)
    support[..., np.abs(X) <= 1000.0] = 1.0
    std = 0.1 * values
    values[:, ::3, -3:] = std[:, ::3, -3:] = 1.0
    arrays = {"mean": values, "std": std, "support": support}
    return Cube(x=X, y=Y, z=Z, arrays=arrays)


def image_of(figure, panel=0):
    return figure.axes[panel].images[0]


def shown(figure, panel=0):
    return np.asarray(image_of(figure, panel).get_array())


def bar_labels(figure):
    drawn = [axes.images[0] for axes in figure.axes if axes.images]
    return [image.colorbar.ax.get_xlabel() for image in drawn]


def place_of_the_peak(image):
    data = np.asarray(image.get_array())
    left, right, bottom, top = image.get_extent()
    row, column = np.unravel_index(np.nanargmax(data), data.shape)
    return (
        left + (column + 0.5) / data.shape[1] * (right - left),
        bottom + (row + 0.5) / data.shape[0] * (top - bottom),
    )


@pytest.mark.parametrize(("draw", "place"), [(face_on, -100.0), (edge_on, 50.0)])
def test_a_view_shows_the_cloud_at_its_place_with_its_extinction(draw, place):
    image = image_of(draw(make_cube()))
    assert place_of_the_peak(image) == pytest.approx((300.0, place))
    assert np.nanmax(image.get_array()) == pytest.approx(0.02 * 50)
    assert image.origin == "lower"


@pytest.mark.parametrize(("width", "panels"), [(0.2, 2), (1.5, 3)])
def test_a_relative_error_stands_beside_the_std_of_a_long_tail(width, panels):
    cube = make_cube()
    median = np.full((len(cube.y), len(cube.x)), 0.3)
    arrays = {
        "mean": median * np.exp(width**2 / 2),
        "std": median * np.exp(width**2 / 2) * np.sqrt(np.expm1(width**2)),
        "p16": median * np.exp(-width),
        "p50": median,
        "p84": median * np.exp(width),
    }
    columns = Columns(along="z", low=-100.0, high=100.0, arrays=arrays)
    page = face_on(cube, columns)
    assert len(bar_labels(page)) == panels
    if panels == 3:
        assert "ln" in bar_labels(page)[2]
        np.testing.assert_allclose(image_of(page, 2).get_array(), width)


def test_extinction_does_not_depend_on_the_unit_of_the_density():
    image = image_of(face_on(make_cube("mag kpc-1", scale=1000.0)))
    assert np.nanmax(image.get_array()) == pytest.approx(0.02 * 50)


def test_a_large_box_is_labelled_in_kiloparsecs():
    cube = make_cube()
    assert "[pc]" in face_on(cube).axes[0].get_xlabel()
    axes = face_on(replace(cube, x=cube.x * 10, y=cube.y * 10)).axes[0]
    assert "[kpc]" in axes.get_xlabel()
    assert axes.get_xlim() == pytest.approx((-4.25, 4.25))
    assert "2 kpc" in {text.get_text() for text in axes.texts}


def test_cells_without_a_map_are_left_out_of_the_picture():
    cube = make_cube()
    full = np.asarray(image_of(face_on(cube)).get_array())
    cube.arrays["mean"][:, 0, 0] = np.nan
    cube.arrays["mean"][0, 2, 14] = np.nan
    data = np.asarray(image_of(face_on(cube)).get_array())
    assert np.isnan(data[0, 0])
    assert np.isnan(data).sum() == 1
    assert data[2, 14] == full[2, 14] > 0


def test_an_integral_over_an_unknown_cell_is_unknown():
    """A difference of two maps would lack what the other does not know."""
    cube = make_cube()
    cube.arrays["mean"][0, 2, 14] = np.nan
    assert np.isnan(cube.integral("mean", "z")).sum() == 1


def test_a_slice_gives_truth_and_map_one_scale_and_a_density_unit():
    figure = density_slice(make_cube(), make_cube(name="density", scale=3.0))
    truth, mean = (image_of(figure, panel) for panel in range(2))
    assert truth.get_clim() == mean.get_clim()
    names = [label.split(" [")[0] for label in bar_labels(figure)]
    assert names == ["true density", "mean density"]
    assert len(bar_labels(density_slice(make_cube()))) == 1


def test_negative_values_are_blue_and_positive_ones_are_not():
    scale = colour_scale("value", np.linspace(-1.0, 3.0, 1000))
    for value in (-0.9, -0.1, -0.02):
        red, _, blue, _ = scale.cmap(scale.norm(value))
        assert blue > red + 0.05
    for value in (0.02, 0.5, 2.0):
        red, _, blue, _ = scale.cmap(scale.norm(value))
        assert red > blue


def test_differences_are_white_at_zero():
    scale = colour_scale("difference", np.linspace(-3.0, 1.0, 500))
    assert min(scale.cmap(scale.norm(0.0))[:3]) > 0.95


def test_one_outlier_does_not_set_the_scale_but_is_announced():
    values = np.random.default_rng(2).uniform(0.0, 1.0, 10_000)
    values[7] = 1e6
    scale = colour_scale("value", values)
    assert scale.norm.vmax < 1.01
    assert scale.norm.vmin == 0.0
    assert scale.extend == "max"


@pytest.mark.parametrize("value", [0.0, 2.5, -2.5, np.nan, 1e-9])
def test_a_constant_image_has_a_scale(value):
    scale = colour_scale("value", np.full((3, 3), value))
    assert scale.norm.vmin < scale.norm.vmax
    if np.isfinite(value):
        assert scale.norm.vmin <= value <= scale.norm.vmax


@pytest.mark.parametrize("draw", [face_on, density_slice])
def test_cells_of_the_prior_set_no_colours_but_are_announced(draw):
    image = draw(wide_cube()).axes[0].images[0]
    known = np.asarray(image.get_array())[5, 12]
    assert image.norm.vmax == pytest.approx(known, rel=0.05)
    assert image.colorbar.extend in ("max", "both")


def test_what_no_sight_line_passes_is_paled():
    axes = face_on(wide_cube()).axes[0]
    veiled = ~np.ma.getmaskarray(axes.collections[0].get_array())
    np.testing.assert_array_equal(veiled, (np.abs(X) > 1000.0) | (veiled & False))


def test_part_of_a_column_is_integrated_with_a_linear_density_between_cells():
    values = np.broadcast_to(Y[None, :, None], (len(Z), len(Y), len(X))) * 1e-6
    cube = Cube(x=X, y=Y, z=Z, arrays={"mean": values})
    part = cube.integral("mean", "y", (-100.0, 700.0))
    np.testing.assert_allclose(part, 1e-6 * (700.0**2 - 100.0**2) / 2)


def test_a_wide_box_is_seen_from_the_side_near_the_sun_only():
    cube = wide_cube()
    assert near_the_sun(cube.y) == (-500.0, 500.0)
    narrow = Cube(x=X, y=Y / 10, z=Z, arrays=cube.arrays)
    assert near_the_sun(narrow.y) == (Y[0] / 10, Y[-1] / 10)
    figure = edge_on(cube)
    assert "500 pc < $y$ < 500 pc" in figure.texts[0].get_text()
    image = figure.axes[0].images[0]
    assert np.asarray(image.get_array())[3, 12] == pytest.approx(1.0)
    assert not isinstance(image.norm, LogNorm)


def test_the_plane_of_a_wide_box_does_not_hide_the_rest():
    cube = wide_cube(np.exp(-np.abs(Z) / 100.0)[:, None, None] * np.ones((1, 21, 25)))
    figure = edge_on(cube)
    assert isinstance(figure.axes[0].images[0].norm, LogNorm)
    assert "logarithmic" in figure.texts[0].get_text()


def test_maps_are_compared_in_the_box_that_both_cover():
    cube = wide_cube()
    small = Cube(
        x=X[10:20], y=Y[2:9], z=Z, arrays={"mean": cube.arrays["mean"][:, 2:9, 10:20]}
    )
    image = np.arange(float(len(Y) * len(X))).reshape(len(Y), len(X))
    columns = Columns(
        along="z", low=Z[0], high=Z[-1], arrays={"mean": image, "std": image}
    )
    figure = compare(cube, small, columns=columns)
    expected = (X[10] - 125.0, X[19] + 125.0, Y[2] - 125.0, Y[8] + 125.0)
    for axes in figure.axes:
        extent = np.array(axes.images[0].get_extent())
        np.testing.assert_allclose(extent, np.array(expected) / 1e3 ** (extent[1] < 10))
        assert not axes.texts
    np.testing.assert_array_equal(shown(figure), image[2:9, 10:20])
    assert "circles every" in figure.texts[0].get_text()


def test_an_integral_is_of_the_mean_and_has_a_std_if_columns_have_it():
    cube = random_cube(mean=1e-3, p50=2e-4, std=1e-4)
    page = face_on(cube)
    # From the first cell's centre to the last one's.
    column = np.trapezoid(cube.arrays["mean"], dx=50, axis=0)
    np.testing.assert_allclose(shown(page, 0), column, rtol=1e-6)
    assert bar_labels(page) == ["mean extinction [mag]"]
    arrays = {"mean": np.ones((9, 17)), "std": np.full((9, 17), 0.2)}
    own = Columns(along="z", low=-100.0, high=100.0, arrays=arrays)
    cube = replace(cube, meta={"extinction_band": "A_V"})
    page = face_on(cube, own)
    assert (shown(page, 1) == 0.2).all()
    assert bar_labels(page)[1] == r"std of the extinction $A_\mathrm{V}$ [mag]"
    with pytest.raises(ValueError, match="along y"):
        edge_on(cube, own)


def test_a_slice_is_the_plane_that_was_asked_for():
    cube = random_cube(mean=1e-4, std=1e-5, support=1.0)
    cube.arrays["support"][:, :3] = 0.0
    page = density_slice(cube, axis="x", at=110.0)
    np.testing.assert_allclose(shown(page, 0), cube.arrays["mean"][:, :, 10] * 1e3)
    assert len(bar_labels(page)) == 1
    assert "hatched" in page.texts[0].get_text()
    with pytest.raises(ValueError, match="no slice at 430 pc"):
        density_slice(cube, axis="x", at=430.0)


def test_logarithmic_colours_show_zero_as_the_least():
    scale = colour_scale("value", np.array([-1.0, 0.0, 1.0, 1.0, 1.0]), log=True)
    assert isinstance(scale.norm, LogNorm)
    assert scale.extend == "min"
    picture = scale.cmap(scale.norm(scale.shown(np.array([0.0]))))
    np.testing.assert_array_equal(picture[0], scale.cmap(scale.norm(1e-9)))


def test_another_grid_is_averaged_over_cells_and_interpolated_between_them():
    cube = random_cube(mean=1e-3)
    x, y, z = (np.arange(-300.0, 301.0, 10.0) for _ in range(3))
    Z, Y, X = np.meshgrid(z, y, x, indexing="ij")
    fine = Cube(x=x, y=y, z=z, arrays={"density": X + 2 * Y - Z}, unit="mag kpc-1")
    fine.arrays["density"][30, 30, 31] += 25.0
    found = regridded(fine, cube).arrays["density"] * 1e3
    places = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    plain = places[2] + 2 * places[1] - places[0]
    outside = np.abs(places[2]) > 250
    assert np.isnan(found[np.abs(places[2]) > 300]).all()
    plain[2, 4, 8] += 25.0 / 125
    np.testing.assert_allclose(found[~outside], plain[~outside], atol=1e-9)
    assert shared_range(cube, fine, "z") == (-100.0, 100.0)
    thin = replace(fine, z=z[20:41], arrays={"density": (X - Z)[20:41]})
    assert shared_range(cube, thin, "z") == (-50.0, 50.0)
    apart = replace(fine, z=z + 5000.0)
    with pytest.raises(ValueError, match="0 planes"):
        shared_range(cube, apart, "z")


def test_a_comparison_has_differences_in_standard_deviations():
    cube = random_cube(mean=1e-3, std=1e-4)
    other = replace(cube, arrays={"density": cube.arrays["mean"] - 2e-4})
    arrays = {"mean": cube.arrays["mean"][1:].sum(axis=0), "std": np.ones((9, 17))}
    with pytest.raises(ValueError, match="both maps cover"):
        compare(cube, other, columns=Columns(along="z", low=0, high=50, arrays=arrays))
    page = compare(cube, other)
    np.testing.assert_allclose(shown(page, 2), 2e-4 * 200)
    np.testing.assert_allclose(shown(page, 5), 0.2)
    assert len(bar_labels(page)) == 6
    own = Columns(along="z", low=-100, high=100, arrays=arrays)
    page = compare(cube, other, columns=own)
    np.testing.assert_allclose(shown(page, 0), arrays["mean"])
    np.testing.assert_allclose(shown(page, 3), shown(page, 2))
    assert len(bar_labels(page)) == 7 and all(axes.has_data() for axes in page.axes)


def make_line(truth=None, extinction=(0.5, 0.6)):
    distance = np.linspace(0.0, 1000.0, 50)
    return LineOfSight(
        l=30.0,
        b=-5.0,
        distance=distance,
        arrays={"mean": distance * 1e-3, "std": np.full(50, 0.1)},
        star_distance=np.linspace(480.0, 620.0, len(extinction)),
        star_extinction=np.array(extinction),
        star_error=np.full(len(extinction), 0.05),
        radius=1.0,
        truth=truth,
    )


def test_bands_hold_68_and_95_percent():
    axes = lines_of_sight([make_line()]).axes[0]
    reach = sorted(
        band.get_datalim(axes.transData).y1 - 1.0 for band in axes.collections[:2]
    )
    assert reach == pytest.approx([0.1, 0.1959964])


def test_an_outlying_star_is_counted_and_does_not_set_the_limits():
    stars = [*np.linspace(0.48, 0.62, 9), 40.0]
    axes = lines_of_sight([make_line(extinction=stars)]).axes[0]
    assert axes.get_ylim()[1] < 2.0
    assert axes.get_title().endswith("(1 outside)")
    assert not axes.texts


def test_truth_is_drawn_where_it_is_known():
    labels = [
        {text.get_text() for text in lines_of_sight([line]).legends[0].get_texts()}
        for line in (make_line(truth=np.zeros(50)), make_line(extinction=()))
    ]
    assert labels[1] == {"posterior mean", "68%", "95%"}
    assert labels[0] == labels[1] | {"truth", "stars nearby"}
