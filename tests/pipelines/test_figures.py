"""Figures show what they were given: places, signs, scales, counts."""

import numpy as np
import pytest
from matplotlib.image import imread

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, LineOfSight, SkyMaps
from pipelines.figures.box import density_slice, edge_on, face_on
from pipelines.figures.scales import colour_scale
from pipelines.figures.sightlines import lines_of_sight
from pipelines.figures.sky import MOLLWEIDE, sky
from pipelines.figures.style import save_figure


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


def image_of(figure, panel=0):
    return figure.axes[panel].images[0]


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


def test_face_on_shows_the_cloud_at_its_x_and_y_with_its_extinction():
    image = image_of(face_on(make_cube()))
    assert place_of_the_peak(image) == pytest.approx((300.0, -100.0))
    assert np.nanmax(image.get_array()) == pytest.approx(0.02 * 50)
    assert image.origin == "lower"


def test_edge_on_shows_the_cloud_at_its_x_and_z():
    image = image_of(edge_on(make_cube()))
    assert place_of_the_peak(image) == pytest.approx((300.0, 50.0))
    assert np.nanmax(image.get_array()) == pytest.approx(0.02 * 50)


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
    small, cube = make_cube(), make_cube()
    large = Cube(x=cube.x * 10, y=cube.y * 10, z=cube.z, arrays=cube.arrays)
    assert "[pc]" in face_on(small).axes[0].get_xlabel()
    axes = face_on(large).axes[0]
    assert "[kpc]" in axes.get_xlabel()
    assert axes.get_xlim() == pytest.approx((-4.25, 4.25))
    assert "2 kpc" in {text.get_text() for text in axes.texts}


def test_cells_without_a_map_are_left_out_of_the_picture():
    cube = make_cube()
    cube.arrays["mean"][0, 0, 0] = np.nan
    data = np.asarray(image_of(face_on(cube)).get_array())
    assert np.isnan(data[0, 0])
    assert np.isnan(data).sum() == 1


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


def test_mollweide_places_are_where_the_formula_puts_them():
    wcs = MOLLWEIDE.wcs

    def project(l, b):  # noqa: E741
        return wcs.wcs_world2pix(l, b, 0)

    assert project(np.array(90.0), np.array(0.0)) == pytest.approx((-1.0, 0.0))
    assert project(np.array(270.0), np.array(0.0)) == pytest.approx((1.0, 0.0))
    assert project(np.array(123.0), np.array(90.0)) == pytest.approx((0, 1), abs=1e-6)
    rng = np.random.default_rng(4)
    l, b = rng.uniform(0, 360, 500), rng.uniform(-89, 89, 500)  # noqa: E741
    x, y = project(l, b)
    back_l, back_b = wcs.wcs_pix2world(x, y, 0)
    np.testing.assert_allclose(back_b, b, atol=1e-4)
    np.testing.assert_allclose((back_l - l + 180) % 360, 180, atol=1e-3)


def test_equal_areas_of_the_sky_are_equal_areas_of_the_figure():
    # Half of the sphere lies within 30 deg of the equator.
    height = MOLLWEIDE.wcs.wcs_world2pix(0.0, 30.0, 0)[1]
    covered = 2 * (height * np.sqrt(1 - height**2) + np.arcsin(height)) / np.pi
    assert covered == pytest.approx(0.5, abs=1e-6)


def make_maps(count):
    distances = 100.0 * np.arange(1, count + 1)
    mean = np.outer(distances, np.ones(48)) * 1e-3
    return SkyMaps(distances=distances, mean=mean, std=mean / 10)


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_sky_has_a_panel_for_a_few_distances_with_the_last(count, panels):
    figure = sky(make_maps(count), dpi=40)
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert len(titles) == 2 * panels
    assert titles[0] == "out to 100 pc"
    assert titles[-1] == f"out to {100 * count} pc"


def test_the_sky_has_its_std_beside_the_mean():
    figure = sky(make_maps(9), distances=[200.0, 400.0], dpi=40)
    middles = [
        np.nanmedian(np.asarray(axes.images[0].get_array())) for axes in figure.axes[:4]
    ]
    assert middles == pytest.approx([0.2, 0.02, 0.4, 0.04])
    assert (
        bar_labels(figure)
        == ["mean extinction [mag]", "std of the extinction [mag]"] * 2
    )
    with pytest.raises(ValueError, match="no map out to 250 pc"):
        sky(make_maps(9), distances=[250.0])


def test_unmapped_sky_stays_unmapped_in_the_picture():
    maps = make_maps(1)
    maps.mean[0, :24] = np.nan
    data = np.asarray(image_of(sky(maps, dpi=100)).get_array())
    outside = np.isnan(
        np.asarray(image_of(sky(make_maps(1), dpi=100)).get_array())
    ).sum()
    inside = data.size - outside
    assert (np.isnan(data).sum() - outside) / inside == pytest.approx(0.5, abs=0.02)


def make_line(truth=None, extinction=(0.5, 0.6)):
    distance = np.linspace(0.0, 1000.0, 50)
    return LineOfSight(
        l=30.0,
        b=-5.0,
        distance=distance,
        mean=distance * 1e-3,
        std=np.full(50, 0.1),
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
    with_truth = lines_of_sight([make_line(truth=np.zeros(50))])
    labels = {text.get_text() for text in with_truth.legends[0].get_texts()}
    assert {"posterior mean", "68%", "95%", "truth", "stars nearby"} == labels
    without = lines_of_sight([make_line(extinction=())])
    labels = {text.get_text() for text in without.legends[0].get_texts()}
    assert {"posterior mean", "68%", "95%"} == labels


def test_a_figure_needs_a_line_of_sight():
    with pytest.raises(ValueError, match="at least one"):
        lines_of_sight([])


def test_figures_are_saved_whole_and_sharp(tmp_path):
    save_figure(face_on(make_cube()), tmp_path / "face_on.png")
    save_figure(face_on(make_cube()), tmp_path / "face_on.png")
    assert imread(tmp_path / "face_on.png").shape[1] > 1000
    assert [item.name for item in tmp_path.iterdir()] == ["face_on.png"]
