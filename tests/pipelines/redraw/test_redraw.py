"""Posterior samples from a small file: what it holds is what the run held."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch
import xarray

from dustmap.functionals import PointValues
from dustmap.inference.white_noise import WhiteNoise
from pipelines.base.errors import InputError
from pipelines.model.observations import rays
from pipelines.products import map_cube
from pipelines.redraw import open_samples, write_sample_cubes, write_samples
from pipelines.redraw.entropy import (
    packed,
    packed_lengths,
    unpacked,
    unpacked_lengths,
)
from pipelines.run.folder import read_run
from pipelines.storage.atomic import write_manifest
from pipelines.verify import verify

RUNS = ["cloud_run", "positive_run", "svi_run"]


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    """A linear run, one with antithetic pairs, and one of the published engine."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def stored(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "map.samples"
    return write_samples(run.path, path), open_samples(path)


def field(run, eps):
    whitening = run.posterior.model.whitening
    return whitening.colour(eps.to(torch.float64))


def test_fields_of_all_samples_are_kept_to_the_tolerance(run, stored):
    report, found = stored
    assert len(found) == len(run.posterior.samples)
    for number, sample in enumerate(run.posterior.samples):
        off = field(run, found.sample(number) - sample) / run.plan.std
        # Of the published engine the box is a part of the torus that is coded.
        assert float((off**2).mean().sqrt()) < 1.5 * report.rms
        assert float(off.abs().max()) <= 1.01 * report.worst
    assert report.rms <= 1e-3 and report.worst <= 1e-2
    assert found.error == {"rms": report.rms, "worst": report.worst}
    assert report.size == found.path.stat().st_size


def test_moments_of_sight_lines_are_those_of_the_run(run, stored):
    _, found = stored
    ends = 400.0 * torch.as_tensor(one_cloud.directions(60))
    ends = ends[run.plan.grid.contains(ends)]
    before = run.posterior.moments(rays(run.plan, ends))
    after = found.posterior.moments(rays(found.plan, ends))
    assert float(((after.mean - before.mean) / before.std).abs().max()) < 0.02
    torch.testing.assert_close(after.std, before.std, rtol=0.02, atol=0)


def test_the_file_is_usable_where_a_run_is(run, stored, tmp_path):
    _, found = stored
    moved = tmp_path / "alone.samples"
    shutil.copy(found.path, moved)
    cube, before = map_cube(open_samples(moved).run), map_cube(run)
    np.testing.assert_allclose(cube.arrays["mean"], before.arrays["mean"], atol=2e-4)
    np.testing.assert_array_equal(
        cube.arrays["support"] > 0, before.arrays["support"] > 0
    )
    np.testing.assert_allclose(
        cube.arrays["support"], before.arrays["support"], rtol=2**-8
    )
    assert found.provenance == run.provenance and found.plan == run.plan


def test_draws_come_one_after_another(run, stored):
    _, found = stored
    three = list(found.draws(3))
    assert len(three) == 3
    torch.testing.assert_close(three[2], found.sample(2), rtol=0, atol=0)
    torch.testing.assert_close(three[2], found.posterior.samples[2], rtol=0, atol=0)
    with pytest.raises(InputError, match="were asked for"):
        list(found.draws(999))
    with pytest.raises(InputError, match="there is no 999"):
        found.sample(999)


@pytest.fixture
def positive(positive_run, tmp_path):
    """The run with antithetic pairs in a folder that may be changed."""
    folder = tmp_path / "run"
    shutil.copytree(positive_run.path, folder)
    return folder


def rewritten(folder, change):
    record = json.loads((folder / "run.json").read_text())
    change(record)
    (folder / "run.json").write_text(json.dumps(record))
    write_manifest(folder)


def test_without_its_seed_a_run_takes_a_larger_file(positive, tmp_path):
    with_seed = write_samples(positive, tmp_path / "a.samples")
    rewritten(positive, lambda record: record["summary"].pop("white_noise"))
    without = write_samples(positive, tmp_path / "b.samples")
    assert not without.seeded and "fitted again" in str(without)
    assert "fitted again" not in str(with_seed)
    assert without.size > 1.3 * with_seed.size
    assert without.rms <= 1e-3
    sample = read_run(positive).posterior.samples[3]
    found = open_samples(tmp_path / "b.samples").sample(3)
    assert float((found - sample).abs().max()) < 0.1


def test_a_looser_tolerance_is_a_smaller_file(positive, tmp_path):
    sizes = [
        write_samples(positive, tmp_path / f"{t}.samples", tolerance=t).size
        for t in (1e-4, 1e-2)
    ]
    assert sizes[1] < 0.7 * sizes[0]
    for tolerance in (0.0, 0.5, float("nan")):
        with pytest.raises(InputError, match="tolerance lies between"):
            write_samples(positive, tmp_path / "c.samples", tolerance=tolerance)


def test_other_white_noise_is_refused(positive, tmp_path, monkeypatch):
    path = tmp_path / "map.samples"
    write_samples(positive, path)
    draw = WhiteNoise.draw

    def other(self, number, shape):
        return draw(replace(self, seed=self.seed + 1), number, shape)

    monkeypatch.setattr(WhiteNoise, "draw", other)
    with pytest.raises(InputError, match="draws other white noise"):
        open_samples(path).sample(0)
    with pytest.raises(InputError, match="cannot be drawn again"):
        write_samples(positive, tmp_path / "again.samples")


def test_every_damage_is_found(positive, tmp_path):
    path = tmp_path / "map.samples"
    write_samples(positive, path)
    assert "16 posterior samples" in verify(path)
    whole = path.read_bytes()
    places = np.linspace(0, len(whole) - 1, 40).astype(int)
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 16
        path.write_bytes(flipped)
        with pytest.raises(InputError):
            verify(path)
        with pytest.raises(InputError):
            open_samples(path)
    for size in (0, 10, 1000, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            verify(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(InputError, match="damaged"):
        verify(path)


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
    assert "density of 3 samples" in verify(path)
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
        f"samples {positive}/run.json --zarr {tmp_path / 'z'}": "no file of samples",
    }
    for line, reason in refused.items():
        said = command(line)
        assert said.exit_code == 2 and reason in said.output, line


@pytest.mark.parametrize("large", [1, 200, 2**30])
def test_whole_numbers_come_back(large):
    rng = np.random.default_rng(3)
    numbers = (rng.standard_normal(5000) ** 5 * large / 400).astype(np.int64)
    numbers = np.clip(numbers, -(2**30), 2**30)
    np.testing.assert_array_equal(unpacked(packed(numbers)), numbers)
    assert len(unpacked(packed(np.zeros(0)))) == 0


def test_lengths_come_back_to_eight_bits():
    rng = np.random.default_rng(3)
    lengths = np.exp(rng.normal(scale=5, size=(9, 7, 5))).astype(np.float32)
    lengths[2:4] = 0
    found = unpacked_lengths(packed_lengths(lengths), lengths.shape)
    np.testing.assert_allclose(found, lengths, rtol=2**-8)
    np.testing.assert_array_equal(found == 0, lengths == 0)
