"""Colours are set by what stars see; ends of columns are those that are named."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, near_the_sun
from pipelines.figures.box import compare, density_slice, edge_on, face_on
from pipelines.figures.integrals import integral

X, Y, Z = (np.arange(-n, n + 1) * 250.0 for n in (12, 10, 6))


def make_cube(density=1e-3):
    """Known within 1 kpc in x; a few cells of the prior beyond are enormous."""
    values = np.full((len(Z), len(Y), len(X)), density)
    support = np.zeros_like(values)
    support[..., np.abs(X) <= 1000.0] = 1.0
    std = 0.1 * values
    values[:, ::3, -3:] = std[:, ::3, -3:] = 1.0
    arrays = {"mean": values, "std": std, "support": support}
    return Cube(x=X, y=Y, z=Z, arrays=arrays)


@pytest.mark.parametrize("draw", [face_on, density_slice])
def test_cells_of_the_prior_set_no_colours_but_are_announced(draw):
    image = draw(make_cube()).axes[0].images[0]
    known = np.asarray(image.get_array())[5, 12]
    assert image.norm.vmax == pytest.approx(known, rel=0.05)
    assert image.colorbar.extend in ("max", "both")


def test_what_no_sight_line_passes_is_paled():
    axes = face_on(make_cube()).axes[0]
    shade = np.asarray(axes.images[1].get_array())[..., 3]
    assert (shade[:, np.abs(X) <= 1000.0] == 0).all()
    assert (shade[:, np.abs(X) > 1000.0] > 0.3).all()


def test_a_cube_and_columns_end_at_the_same_places():
    cube = make_cube()
    image = np.ones((len(Y), len(X)))
    arrays = {"mean": image, "std": image}
    columns = Columns(along="z", low=Z[0], high=Z[-1], arrays=arrays)
    notes = [face_on(cube, given).texts[0].get_text() for given in (columns, None)]
    assert notes[0].split(";")[0] == notes[1].split(";")[0]
    assert integral(cube, "mean", "z")[5, 12] == pytest.approx(3.0)


def test_part_of_a_column_is_integrated_with_a_linear_density_between_cells():
    values = np.broadcast_to(Y[None, :, None], (len(Z), len(Y), len(X))) * 1e-6
    cube = Cube(x=X, y=Y, z=Z, arrays={"mean": values})
    part = integral(cube, "mean", "y", (-100.0, 700.0))
    np.testing.assert_allclose(part, 1e-6 * (700.0**2 - 100.0**2) / 2)


def test_a_wide_box_is_seen_from_the_side_near_the_sun_only():
    cube = make_cube()
    assert near_the_sun(cube.y) == (-500.0, 500.0)
    assert near_the_sun(cube.y, 800.0) == (-800.0, 800.0)
    assert near_the_sun(cube.y, 1e9) == (Y[0], Y[-1])
    narrow = Cube(x=X, y=Y / 10, z=Z, arrays=cube.arrays)
    assert near_the_sun(narrow.y) == (Y[0] / 10, Y[-1] / 10)
    figure = edge_on(cube)
    assert "500 pc < $y$ < 500 pc" in figure.texts[0].get_text()
    image = figure.axes[0].images[0]
    assert np.asarray(image.get_array())[3, 12] == pytest.approx(1.0)
    assert not isinstance(image.norm, LogNorm)


def test_the_plane_of_a_wide_box_does_not_hide_the_rest():
    cube = make_cube(np.exp(-np.abs(Z) / 100.0)[:, None, None] * np.ones((1, 21, 25)))
    figure = edge_on(cube)
    assert isinstance(figure.axes[0].images[0].norm, LogNorm)
    assert "logarithmic" in figure.texts[0].get_text()
    assert not isinstance(edge_on(cube, log=False).axes[0].images[0].norm, LogNorm)


def test_maps_are_compared_in_the_box_that_both_cover():
    cube = make_cube()
    small = Cube(
        x=X[10:20], y=Y[2:9], z=Z, arrays={"mean": cube.arrays["mean"][:, 2:9, 10:20]}
    )
    image = np.arange(float(len(Y) * len(X))).reshape(len(Y), len(X))
    arrays = {"mean": image, "std": image}
    columns = Columns(along="z", low=Z[0], high=Z[-1], arrays=arrays)
    figure = compare(cube, small, columns=columns)
    for axes in figure.axes[:8]:
        expected = (X[10] - 125.0, X[19] + 125.0, Y[2] - 125.0, Y[8] + 125.0)
        extent = np.array(axes.images[0].get_extent())
        np.testing.assert_allclose(extent, np.array(expected) / 1e3 ** (extent[1] < 10))
        assert not axes.texts
    shown = np.asarray(figure.axes[0].images[0].get_array())
    np.testing.assert_array_equal(shown, image[2:9, 10:20])
    assert "circles every" in figure.texts[0].get_text()
