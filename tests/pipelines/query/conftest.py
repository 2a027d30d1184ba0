"""Stores of the map of `ray_field`, by the resolution of their rays."""

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
