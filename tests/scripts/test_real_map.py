"""The commands of the real map run, and say what is missing."""

import os
import subprocess
from pathlib import Path

import pytest

from pipelines.run.status import status_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "real_map.sh"
QUICK = (
    "box.spacing=200 prior.lengthscale=300 prior.std=0.001 prior.mean=constant "
    "prior.mean_density=0.001 model.common_noise=0.1 inference.samples=2"
)


def run(*arguments, **environment):
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("names", [[], ["gaia_ob.csv.gz"]], ids=["none", "one"])
def test_a_folder_without_the_catalogues_is_refused_in_one_line(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    done = run(tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path} has no cluster_surveys.csv.gz" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    not (ROOT / ".venv").exists(), reason="the script runs in .venv, which is not there"
)
def test_the_real_map_is_made_of_clusters_and_stars(data_dir, tmp_path):
    done = run(data_dir, tmp_path / "map", DUSTMAP_REAL_MAP_FIT=QUICK)
    assert done.returncode == 0, done.stderr
    assert "95,885 rows read from 2 files, 95,885 kept" in done.stdout
    for name in ("", "map.zarr"):
        assert status_of(tmp_path / "map" / "run" / name)["state"] == "finished"
    for name in ("map.fits", "map.healpix.fits"):
        assert (tmp_path / "map" / "run" / name).is_file()
    for name in ("face_on", "edge_on", "sky", "lines_of_sight", "density_400pc"):
        assert (tmp_path / "map" / "figures" / f"{name}.png").stat().st_size > 10_000
    assert (tmp_path / "map" / "map.html").stat().st_size > 2_000_000
    assert (tmp_path / "map" / "figures" / "clouds" / "lines_of_sight.png").exists()
    summary = done.stdout[done.stdout.index("== extinction of the held-out rows") :]
    counts = {
        line.split(":")[0]: int(line.split(": ")[1].split(",")[0])
        for line in summary.splitlines()[1:10]
    }
    whole = counts.pop("all")
    assert len(counts) == 8
    assert sum(counts.values()) == whole > 2000
