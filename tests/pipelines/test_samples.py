"""Posterior samples from their archive: what it holds is what the run held."""

from __future__ import annotations

import shutil

import numpy as np
import one_cloud
import pytest
import torch
import xarray
import zarr

from dustmap.functionals import PointValues
from pipelines.base.errors import InputError
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.model.observations import rays
from pipelines.products import map_cube
from pipelines.run.folder import read_run
from pipelines.samples import read_samples, write_sample_cubes, write_samples
from pipelines.verify import verify

RUNS = ["cloud_run", "positive_run", "svi_run", "cubic_run"]


@pytest.fixture(scope="module")
def cubic_run(tmp_path_factory):
    """A linear run that sees a finer grid, a point beyond the box included."""
    folder = tmp_path_factory.mktemp("cubic")
    write_stars(folder / "stars.parquet", one_cloud.catalogue(300), overwrite=False)
    plain = one_cloud.settings()
    plain["model"] |= {"interpolation": "cubic", "refinement": 2}
    plain["inference"] |= {"samples": 4}
    fit(folder / "stars.parquet", folder / "run", FitConfig.model_validate(plain))
    return read_run(folder / "run")


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    """Linear runs, one with antithetic pairs, and one of the published engine."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def stored(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "map.samples"
    return write_samples(run, path), read_samples(path)


def gaussian_field(run, eps):
    """The field in the prior's standard deviation, at the grid's points."""
    model = run.posterior.model.at(PointValues(run.plan.grid.points()))
    density = model.apply(eps).to(torch.float64)
    return (density.log() if model.positive else density) / run.plan.std


def test_fields_of_all_samples_are_kept_to_the_tolerance(run, stored):
    report, found = stored
    both = zip(found.posterior.samples, run.posterior.samples, strict=True)
    for ours, theirs in both:
        off = gaussian_field(found, ours) - gaussian_field(run, theirs)
        assert float((off**2).mean().sqrt()) < 1e-3
        assert float(off.abs().max()) <= 1.8e-3
    written = sum(f.stat().st_size for f in report.output.rglob("*") if f.is_file())
    assert report.size == written


def test_the_arrays_need_no_reader_of_ours(run, stored):
    report, _ = stored
    group = zarr.open_group(report.output, mode="r")
    with xarray.open_zarr(report.output) as opened:
        name = opened.attrs["arrays"][0]
        field = opened[name].load()
        assert set(opened[name].dims) == {"sample", "z", "y", "x"}
        np.testing.assert_array_equal(group[name][:], field.values)
    assert name == ("log_density" if run.posterior.model.positive else "density")
    assert field.dims == ("sample", "z", "y", "x")
    step = group.attrs["step"]
    np.testing.assert_array_equal(field.values % step, 0)
    place = [n // 3 for n in run.plan.grid.shape]
    here = torch.tensor(
        [[float(run.plan.grid.axis(d)[i]) for d, i in enumerate(place)]]
    )
    model = run.posterior.model.at(PointValues(here.to(torch.float64)))
    x, y, z = here[0].tolist()
    for number, eps in enumerate(run.posterior.samples[:3]):
        expected = float(model.apply(eps)[0])
        expected = np.log(expected) if model.positive else expected
        found = float(field.sel(sample=number, x=x, y=y, z=z))
        assert found == pytest.approx(expected, abs=0.51 * step + 1e-6)


def test_moments_of_sight_lines_are_those_of_the_run(run, stored):
    _, found = stored
    ends = 400.0 * torch.as_tensor(one_cloud.directions(60))
    ends = ends[run.plan.grid.contains(ends)]
    before = run.posterior.moments(rays(run.plan, ends))
    after = found.posterior.moments(rays(found.plan, ends))
    assert float(((after.mean - before.mean) / before.std).abs().max()) < 0.02
    torch.testing.assert_close(after.std, before.std, rtol=0.02, atol=0)


def test_the_archive_is_usable_where_a_run_is(run, stored, tmp_path):
    _, found = stored
    moved = tmp_path / "alone.samples"
    shutil.copytree(found.path, moved)
    cube, before = map_cube(read_samples(moved)), map_cube(run)
    np.testing.assert_allclose(cube.arrays["mean"], before.arrays["mean"], atol=2e-4)
    np.testing.assert_array_equal(cube.arrays["support"], before.arrays["support"])
    assert found.provenance == run.provenance and found.plan == run.plan


@pytest.fixture
def positive(positive_run, tmp_path):
    """The run with antithetic pairs in a folder that may be changed."""
    folder = tmp_path / "run"
    shutil.copytree(positive_run.path, folder)
    return folder


def test_a_looser_tolerance_is_a_smaller_archive(positive_run, tmp_path):
    sizes = [
        write_samples(positive_run, tmp_path / f"{t}.samples", tolerance=t).size
        for t in (1e-5, 1e-2)
    ]
    assert sizes[1] < 0.8 * sizes[0]
    for tolerance in (0.0, 0.5, float("nan")):
        with pytest.raises(InputError, match="tolerance lies between"):
            write_samples(positive_run, tmp_path / "c.samples", tolerance=tolerance)


def test_every_damage_is_found(positive_run, tmp_path):
    path = tmp_path / "map.samples"
    write_samples(positive_run, path)
    assert "16 posterior samples" in verify(path)
    for item in sorted(path.rglob("*")):
        if not item.is_file():
            continue
        whole = item.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 16
        for damaged in (flipped, whole[:-1], whole + b"x"):
            item.write_bytes(damaged)
            with pytest.raises(InputError):
                verify(path)
            with pytest.raises(InputError):
                read_samples(path)
        item.unlink()
        with pytest.raises(InputError):
            verify(path)
        item.write_bytes(whole)
    assert "16 posterior samples" in verify(path)


def test_cubes_of_samples_open_with_labelled_axes(run, stored, tmp_path):
    path = tmp_path / "cubes.zarr"
    assert write_sample_cubes(path, stored[1], count=3) == 3
    with xarray.open_zarr(path, consolidated=True) as opened:
        density = opened["density"].load()
        assert density.dims == ("sample", "z", "y", "x")
        assert density.attrs["units"] == "mag pc-1"
    grid = run.plan.grid
    place = [n // 3 for n in grid.shape]
    here = torch.tensor([[float(grid.axis(d)[i]) for d, i in enumerate(place)]])
    for number in range(3):
        model = run.posterior.model.at(PointValues(here.to(torch.float64)))
        expected = float(model.apply(run.posterior.samples[number])[0])
        x, y, z = here[0].tolist()
        found = float(density.sel(sample=number, x=x, y=y, z=z))
        assert found == pytest.approx(expected, rel=0.03, abs=3e-5)
    assert "density of 3 posterior samples" in verify(path)
    with pytest.raises(InputError, match="cubes alone"):
        read_samples(path)
    chunk = path / "density/c/2/0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(InputError, match="altered"):
        verify(path)


def test_the_verb_writes_and_reads(positive, tmp_path, command):
    small, cubes = tmp_path / "map.samples", tmp_path / "cubes.zarr"
    said = command(f"samples {positive} -o {small} --tolerance 0.01")
    assert said.exit_code == 0 and "16 samples and the mean in" in said.output
    said = command(f"samples {small} --zarr {cubes} --count 2")
    assert said.exit_code == 0 and "2 density cubes" in said.output
    assert command(f"verify {small}").exit_code == 0
    refused = {
        f"samples {positive}": "name an output",
        f"samples {positive} -o {small}": "exists",
        f"samples {small} -o {tmp_path / 'other'}": "folder of a run",
        f"samples {small} --zarr {tmp_path / 'z'} --tolerance 0.1": "name one with -o",
        f"samples {positive} -o {tmp_path / 'o'} --count 2": "name a store",
        f"samples {small} --zarr {tmp_path / 'z'} --count 17": "holds 16 samples",
        f"samples {tmp_path / 'none'} -o {tmp_path / 'o'}": "not a run folder",
        f"samples {positive}/run.json --zarr {tmp_path / 'z'}": "not a run folder",
    }
    for line, reason in refused.items():
        said = command(line)
        assert said.exit_code == 2 and reason in said.output, line
