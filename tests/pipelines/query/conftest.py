"""Stores of the map of `ray_field`, by the resolution of their rays."""

import numpy as np
import one_cloud
import pytest
import ray_field


@pytest.fixture(scope="package")
def path(tmp_path_factory):
    return ray_field.write(tmp_path_factory.mktemp("rays") / "map.zarr")


@pytest.fixture(scope="package")
def store(tmp_path_factory):
    """Rays of nside 32, between which errors are below 0.1%."""
    folder = tmp_path_factory.mktemp("fine_rays")
    return ray_field.write(folder / "map.zarr", nside=32)


@pytest.fixture(scope="package")
def places():
    """Places in the box of `one_cloud`."""
    lower, upper = np.array(one_cloud.BOX).T
    ends = np.random.default_rng(6).uniform(lower, upper, size=(300, 3))
    return one_cloud.at(ends, np.zeros(300), 0.1)


@pytest.fixture(scope="package")
def coords(places):
    return ray_field.at(places.l, places.b, places.distance)
