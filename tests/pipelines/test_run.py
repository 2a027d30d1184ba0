"""The run folder: complete, self-describing, and the same when read back."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch
from safetensors.torch import load_file

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars, read_table
from pipelines.config import FitConfig, load_config
from pipelines.run.folder import check_run_folder, read_run, write_posterior
from pipelines.run.predict import predict_columns

FILES = [
    "COMPLETE",
    "config.toml",
    "held_out.parquet",
    "manifest.json",
    "map.zarr",
    "metrics.jsonl",
    "posterior.safetensors",
    "run.json",
    "stars.parquet",
]


def test_the_configuration_in_the_run_makes_the_same_run(cloud_run):
    used = load_config(FitConfig, cloud_run.path / "config.toml")
    assert used == FitConfig.model_validate(one_cloud.settings())
    assert cloud_run.provenance["configuration"]["box"]["spacing"] == [70.0] * 3


def test_provenance_names_version_seed_and_the_hash_of_the_input(
    cloud_run, cloud_stars
):
    provenance = cloud_run.provenance
    assert provenance["version"] == dustmap.__version__
    assert provenance["seed"] == 0
    digest = hashlib.sha256(cloud_stars.read_bytes()).hexdigest()
    assert provenance["inputs"] == [{"name": cloud_stars.name, "sha256": digest}]


def test_plan_and_stars_come_back_as_they_were(cloud_report, cloud_run):
    assert cloud_run.plan == cloud_report.plan
    kept = read_stars(cloud_run.path / "stars.parquet")
    assert len(kept) == cloud_run.summary["counts"]["fitted"] == 1900
    every = read_stars(cloud_report.output.parent / "stars.parquet")
    # A fit takes them in the order of their directions.
    known = dict(zip(np.array(every.source_id), np.array(every.extinction)))
    expected = [known[star] for star in np.array(kept.source_id)]
    np.testing.assert_array_equal(np.array(kept.extinction), expected)


def test_the_posterior_read_back_predicts_the_held_out_stars_alike(cloud_run):
    columns, _, _ = read_table(cloud_run.path / "held_out.parquet")
    every = read_stars(cloud_run.path.parent / "stars.parquet")
    stars = every.select(np.isin(np.array(every.source_id), columns["source_id"]))
    again = predict_columns(cloud_run.plan, cloud_run.posterior, stars)
    for name in ("extinction_mean", "density_mean"):
        np.testing.assert_allclose(again[name], columns[name], rtol=1e-5)
    # Another draw of the sub-grid residual, of the same size.
    ratio = again["extinction_std"] / columns["extinction_std"]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.1)


def test_tensors_come_back_bit_by_bit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, generator=generator)
    samples = torch.randn(6, 3, generator=generator).T
    support = torch.zeros(1, 2, 3)
    write_posterior(tmp_path, mean, samples, [support])
    loaded = load_file(tmp_path / "posterior.safetensors")
    assert torch.equal(loaded["samples"], samples)
    assert torch.equal(loaded["mean"], mean)
    assert loaded["support"].shape == (1, 2, 3)


@pytest.mark.parametrize("name", ["COMPLETE", "stars.parquet"])
def test_a_run_that_lacks_a_file_is_refused(cloud_run, tmp_path, name):
    shutil.copytree(cloud_run.path, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(InputError, match=name):
        read_run(tmp_path / "run")


def test_a_flipped_bit_in_the_posterior_is_noticed(cloud_run, tmp_path):
    shutil.copytree(cloud_run.path, tmp_path / "run")
    path = tmp_path / "run" / "posterior.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"altered: posterior\.safetensors"):
        read_run(tmp_path / "run")


def test_only_a_run_or_nothing_may_be_replaced(cloud_run, tmp_path):
    check_run_folder(tmp_path / "new", overwrite=False)
    (tmp_path / "empty").mkdir()
    check_run_folder(tmp_path / "empty", overwrite=True)
    check_run_folder(cloud_run.path, overwrite=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"run\.json"):
        check_run_folder(tmp_path / "home", overwrite=True)
    with pytest.raises(InputError, match="exists"):
        check_run_folder(tmp_path / "empty", overwrite=False)


def test_the_engine_svi_leaves_a_run_of_the_same_shape(svi_run):
    assert sorted(path.name for path in svi_run.path.iterdir()) == FILES
    assert svi_run.plan.engine == "svi"
    # Its whitened parameters live on the embedding, not on the grid.
    latent = np.prod(svi_run.plan.embedding.shape)
    assert svi_run.posterior.samples.shape == (24, latent)
    lines = (svi_run.path / "metrics.jsonl").read_text().splitlines()
    bounds = [r["value"] for r in map(json.loads, lines) if r["kind"] == "bound"]
    assert len(bounds) > 5 and bounds[-1] > bounds[0]


def test_a_place_has_one_extinction_alone_and_in_any_table(svi_run):
    nodes = replace(svi_run.plan.embedding, quadrature="monte-carlo", seed=2**40)
    run = replace(svi_run, plan=replace(svi_run.plan, embedding=nodes))
    stars = read_stars(run.path / "stars.parquet").select(np.arange(6))

    def predicted(rows):
        return predict_columns(run.plan, run.posterior, stars.select(rows))

    order, ask = np.random.default_rng(1).permutation(6), predicted
    every = ask(np.arange(6))["extinction_mean"]
    assert np.array_equal(ask(order)["extinction_mean"], every[order])
    assert np.array_equal(ask(order[:3])["extinction_mean"], every[order[:3]])
    assert np.array_equal(ask(order[:1])["extinction_mean"], every[order[:1]])
    every, alone = (predicted(rows) for rows in (np.arange(6), order[:1]))
    name = "extinction_std"
    np.testing.assert_allclose(alone[name], every[name][order[:1]], rtol=1e-9)
    # Another seed has other nodes.
    other = replace(run.plan, embedding=replace(nodes, seed=0))
    moved = predict_columns(other, run.posterior, stars)["extinction_mean"]
    assert not (moved == every["extinction_mean"]).any()
