"""The commands of the real map run, and say what is missing."""

import os
import subprocess
from pathlib import Path

import pytest

from pipelines.verify import verify

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
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("names", [[], ["stars_av.csv.gz"]], ids=["none", "one"])
def test_a_folder_without_the_catalogues_is_refused_in_one_line(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    done = run(tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path} has no clusters_hunt2023.csv.gz" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    not (ROOT / ".venv").exists(), reason="the script runs in .venv, which is not there"
)
def test_the_real_map_is_made_of_clusters_and_stars(data_dir, tmp_path):
    done = run(data_dir, tmp_path / "map", DUSTMAP_REAL_MAP_FIT=QUICK)
    assert done.returncode == 0, done.stderr
    assert "9,624 rows read from 2 files, 9,624 kept" in done.stdout
    for name in ("", "map.zarr", "map.fits", "map.healpix.fits"):
        verify(tmp_path / "map" / "run" / name)
    for name in ("face_on", "edge_on", "sky", "lines_of_sight", "density_400pc"):
        assert (tmp_path / "map" / "figures" / f"{name}.png").stat().st_size > 10_000
    assert (tmp_path / "map" / "report.html").stat().st_size > 5_000_000
    summary = done.stdout[done.stdout.index("== extinction of the held-out stars") :]
    kinds = ["open clusters", "stars in fields"]
    counts = [int(summary.split(f"{k}: ")[1].split(",")[0]) for k in ("all", *kinds)]
    assert counts[0] == counts[1] + counts[2] > 600
