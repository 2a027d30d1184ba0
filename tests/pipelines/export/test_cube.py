"""A cube is checked when made, and sampled where its coordinates say."""

import numpy as np
import pytest

from pipelines.cubes.cube import Cube

AXIS = np.array([0.0, 1.0, 2.0])


def make_linear():
    """Values x + 10 y + 100 z, which trilinear interpolation reproduces."""
    x, y, z = np.arange(3.0), np.arange(4.0) * 2 - 1, np.arange(5.0) / 2
    Z, Y, X = np.meshgrid(z, y, x, indexing="ij")
    return Cube(x=x, y=y, z=z, arrays={"mean": X + 10 * Y + 100 * Z})


def test_a_linear_field_is_sampled_exactly_with_axes_in_order():
    points = np.random.default_rng(1).uniform([0, -1, 0], [2, 5, 2], size=(7, 3, 3))
    np.testing.assert_allclose(
        make_linear().sample("mean", points), points @ [1.0, 10.0, 100.0]
    )


def test_beyond_the_outermost_centres_there_is_no_value():
    points = np.array([[2.1, 0, 1], [1, -1.1, 1], [1, 0, 2.1], [1, 0, 1]])
    assert np.isnan(make_linear().sample("mean", points)).tolist() == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (np.array([0.0]), "at least 2"),
        (np.array([0.0, 1.0, 3.0]), "evenly spaced"),
        (np.array([2.0, 1.0, 0.0]), "increasing"),
        (np.array([0.0, 1.0, 2.0, 3.0]), "shape"),
    ],
)
def test_a_cube_is_checked(axis, message):
    with pytest.raises(ValueError, match=message):
        Cube(x=axis, y=AXIS, z=AXIS, arrays={"mean": np.zeros((3, 3, 3))})
