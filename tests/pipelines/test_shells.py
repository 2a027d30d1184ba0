"""Shells: the mean density between two spheres, its std, and its place on the sky."""

import json
from dataclasses import replace

import healpy
import numpy as np
import one_cloud
import pytest
import torch
from astropy.io import fits
from ray_moments import cumulative

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import KINDS
from pipelines.cubes.sky import ShellMaps
from pipelines.formats.healpix import read_shells, write_shells
from pipelines.maps.sky import rays_across, shell_maps
from pipelines.model.observations import rays

EDGES = np.array([0.0, 100.0, 200.0, 400.0, 500.0])
CLOUD = one_cloud.CENTRE / np.linalg.norm(one_cloud.CENTRE)


@pytest.fixture(scope="module")
def shells(cloud_run):
    return shell_maps(cloud_run, edges=EDGES, nside=16)


@pytest.fixture(scope="module")
def positive_shells(positive_run):
    return shell_maps(positive_run, edges=EDGES[:3], nside=16)


def centres(nside):
    pixels = np.arange(12 * nside**2)
    return unit_vectors(*healpy.pix2ang(nside, pixels, nest=True, lonlat=True))


def test_the_mean_is_the_difference_of_integrals_over_the_length(cloud_run, shells):
    assert rays_across(cloud_run, 500.0, 16) == 1
    mean, _ = cumulative(cloud_run, centres(16), EDGES[1:])
    expected = np.diff(mean, axis=0, prepend=0.0) / np.diff(EDGES)[:, None]
    found = shells.arrays["mean"]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    scale = np.nanmax(np.abs(expected))
    # The same nodes where segments are the same; rounding of float32 else.
    np.testing.assert_allclose(found, expected, atol=2e-3 * scale, rtol=1e-4)


def test_the_std_is_that_of_the_mean_as_draws_have_it(cloud_run, shells):
    directions = torch.as_tensor(centres(16)[::10])
    fine = replace(cloud_run.plan, ray_step=cloud_run.plan.ray_step / 2)
    asked = rays(fine, 200.0 * directions, 100.0 * directions)
    generator = torch.Generator().manual_seed(4)
    draws = cloud_run.posterior.draws(asked, generator).numpy() / 100.0
    expected = np.sqrt(((draws - shells.arrays["mean"][1, ::10]) ** 2).mean(axis=0))
    ratio = shells.arrays["std"][1, ::10] / expected
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
    # That of the difference of two integrals taken as independent is larger.
    _, std = cumulative(cloud_run, centres(16)[::10], np.array([100.0, 200.0]))
    apart = np.hypot(*std) / 100.0
    assert np.median(apart / expected) > 1.1


def test_the_cloud_is_in_its_shell_and_in_its_direction(shells, tmp_path):
    write_shells(tmp_path / "shells.fits", shells)
    # The centre of the cloud is 448 pc away.
    ring = healpy.read_map(tmp_path / "shells.fits", field=3)
    ring[ring == healpy.UNSEEN] = -np.inf
    brightest = healpy.pix2vec(16, int(ring.argmax()))
    assert np.degrees(np.arccos(brightest @ CLOUD)) < 6
    true = one_cloud.extinction(np.outer([400.0, 500.0], CLOUD))
    assert ring.max() == pytest.approx((true[1] - true[0]) / 100.0, rel=0.15)
    pixel = healpy.vec2pix(16, *CLOUD, nest=True)
    mean = shells.arrays["mean"][:, pixel]
    assert mean.argmax() == 3 and mean[3] > 10 * mean[0]


def test_pixels_that_reach_out_of_the_box_are_empty(cloud_run, shells):
    lower, upper = np.array(one_cloud.BOX).T
    ends = EDGES[1:, None, None] * centres(16)
    inside = ((ends >= lower) & (ends <= upper)).all(axis=-1)
    for array in shells.arrays.values():
        np.testing.assert_array_equal(np.isfinite(array), inside)
    # A coarse pixel is empty where a corner of it is outside.
    coarse = shell_maps(cloud_run, edges=EDGES[2:], nside=2)
    assert rays_across(cloud_run, 400.0, 2) == 4
    fine = shell_maps(cloud_run, edges=EDGES[2:], nside=8)
    whole = np.isfinite(fine.arrays["mean"][0]).reshape(48, -1).all(axis=1)
    np.testing.assert_array_equal(np.isfinite(coarse.arrays["mean"][0]), whole)


def test_a_large_pixel_is_the_mean_over_its_rays(cloud_run, positive_run):
    for run in (cloud_run, positive_run):
        assert rays_across(run, 200.0, 2) == 2
        coarse = shell_maps(run, edges=np.array([100.0, 200.0]), nside=2)
        fine = shell_maps(run, edges=np.array([100.0, 200.0]), nside=4)
        parts = {n: a[0].reshape(48, -1) for n, a in fine.arrays.items()}
        mean, std = coarse.arrays["mean"][0], coarse.arrays["std"][0]
        np.testing.assert_allclose(mean, parts["mean"].mean(axis=1), rtol=1e-5)
        # Averaging over rays that vary together takes some of the std away, not half.
        ratio = std / np.sqrt((parts["std"] ** 2).mean(axis=1))
        assert (ratio < 1 + 1e-5).all() and 0.6 < np.median(ratio) < 0.999


def test_a_positive_density_has_quantiles_of_the_mean(positive_shells, positive_run):
    mean, std, _, p16, p50, p84, _ = positive_shells.arrays.values()
    assert list(positive_shells.arrays) == list(KINDS)
    assert (p16 > 0).all() and (p16 < p50).all() and (p50 < p84).all()
    directions = torch.as_tensor(centres(16))
    fine = replace(positive_run.plan, ray_step=positive_run.plan.ray_step / 2)
    asked = rays(fine, 200.0 * directions, 100.0 * directions)
    moments = positive_run.posterior.moments(asked)
    np.testing.assert_allclose(mean[1], moments.mean / 100.0, rtol=1e-5)
    np.testing.assert_allclose(std[1], moments.std / 100.0, rtol=1e-4)
    np.testing.assert_allclose(p50[1], moments.quantile(0.5) / 100.0, rtol=1e-4)


def test_the_engine_svi_has_shells(svi_run):
    found = shell_maps(svi_run, edges=np.array([0.0, 200.0]), nside=1)
    assert np.isfinite(found.arrays["mean"]).all() and (found.arrays["std"] > 0).all()


def test_shells_no_ray_reaches_are_refused(cloud_run):
    for edges in ([0.0, 1e6], [-1.0, 5.0], [200.0, 100.0], [100.0], [0.0, np.nan]):
        with pytest.raises(InputError, match="shells"):
            shell_maps(cloud_run, edges=np.array(edges), nside=1)
    with pytest.raises(InputError, match="power of 2"):
        shell_maps(cloud_run, edges=EDGES, nside=12)


def test_shells_come_back(positive_shells, tmp_path):
    path = tmp_path / "shells.fits"
    write_shells(path, positive_shells)
    read = read_shells(path)
    np.testing.assert_array_equal(read.edges, positive_shells.edges)
    assert read.unit == "mag pc-1" and read.nside == 16
    # JSON knows lists only.
    assert read.meta == json.loads(json.dumps(positive_shells.meta))
    for name, array in positive_shells.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    with fits.open(path, checksum=True) as hdus:
        hdus.verify("exception")
        assert hdus[1].columns.names[:3] == [
            "MEAN_0_100PC",
            "MEAN_100_200PC",
            "STD_0_100PC",
        ]
        header = hdus[1].header
        assert [header[f"EDGE{i}"] for i in range(3)] == [0.0, 100.0, 200.0]
        assert (header["ORDERING"], header["COORDSYS"]) == ("NESTED", "G")
    with pytest.raises(InputError, match="exists"):
        write_shells(path, positive_shells)
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        read_shells(path)


@pytest.mark.parametrize("shape", [(2, 12), (1, 13)])
def test_shell_maps_are_checked(shape):
    arrays = {"mean": np.zeros(shape), "std": np.zeros(shape)}
    with pytest.raises(ValueError):
        ShellMaps(edges=np.array([0.0, 1.0]), arrays=arrays)
