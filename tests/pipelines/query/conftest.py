"""Stores of the map of `ray_field`, by the resolution of their rays."""

import h5py
import map_layouts
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


@pytest.fixture
def package_maps(tmp_path, monkeypatch):
    """The data folder of the package dustmaps, with small maps in it."""
    pytest.importorskip("dustmaps")
    from dustmaps import bayestar as bayestar_module
    from dustmaps import edenhofer2023, leike2020

    for module in (bayestar_module, edenhofer2023, leike2020):
        monkeypatch.setattr(module, "data_dir", lambda: str(tmp_path))
    for name in ("edenhofer_2023", "bayestar", "leike_2020"):
        (tmp_path / name).mkdir()
    map_layouts.edenhofer(tmp_path / "edenhofer_2023" / "mean_and_std_healpix.fits")
    map_layouts.bayestar(
        tmp_path / "bayestar" / "bayestar2019.h5", len(map_layouts.MODULI)
    )
    map_layouts.bayestar(tmp_path / "bayestar" / "bayestar2015.h5", 31)
    with h5py.File(tmp_path / "leike_2020" / "mean_std.h5", "w") as file:
        # From -370, -370 and -270 pc on, which the package takes as given.
        for name, value in (("mean", 2e-3), ("std", 2e-4)):
            file.create_dataset(name, data=np.full((500, 500, 330), value, "f4"))
    return tmp_path
