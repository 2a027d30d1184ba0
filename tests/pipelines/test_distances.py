"""Distances of stars given a map: closer to the truth, with errors that hold."""

from dataclasses import replace

import numpy as np
import one_cloud
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_table, write_stars
from pipelines.run.distances import distance_columns

SPREAD = 60.0


@pytest.fixture(scope="module")
def behind() -> tuple[Stars, np.ndarray]:
    """Stars in front of, in and behind the cloud, and their true distances [pc]."""
    rng = np.random.default_rng(4)
    towards = one_cloud.CENTRE + rng.normal(scale=30.0, size=(500, 3))
    towards /= np.linalg.norm(towards, axis=1)[:, None]
    true = rng.uniform(200, 640, 500)
    ends = towards * true[:, None]
    noise = one_cloud.ERROR * rng.standard_normal(500)
    stars = one_cloud.at(ends, one_cloud.extinction(ends) + noise, one_cloud.ERROR)
    measured = np.maximum(true + SPREAD * rng.standard_normal(500), 20.0)
    stars = replace(stars, distance=measured, distance_error=np.full(500, SPREAD))
    return stars, true


def test_distances_are_better_and_their_errors_hold(positive_run, behind) -> None:
    stars, true = behind
    found = distance_columns(positive_run, stars)
    known = np.isfinite(found["posterior_distance"])
    # The catalogue places some of them outside the box.
    assert 0.9 < known.mean() < 1
    error = (found["posterior_distance"] - true)[known]
    before = (stars.distance - true)[known]
    assert np.sqrt(np.mean(error**2)) < 0.75 * np.sqrt(np.mean(before**2))
    std = found["posterior_distance_std"][known]
    assert (std <= 1.05 * SPREAD).all()
    assert np.std(error / std) == pytest.approx(1, abs=0.15)
    # In the cloud the extinction tells most.
    inside = np.abs(true[known] - np.linalg.norm(one_cloud.CENTRE)) < 70
    assert np.median(std[inside]) < 0.6 * np.median(std[~inside])


def test_an_outlier_keeps_its_distance(positive_run, behind) -> None:
    stars = behind[0].select(slice(0, 20))
    assert stars.extinction is not None
    wrong = replace(stars, extinction=stars.extinction + 8.0)
    far = distance_columns(positive_run, wrong)
    near = distance_columns(positive_run, stars)
    known = np.isfinite(near["outlier"])
    assert np.median(near["outlier"][known]) < 0.05
    assert (far["outlier"][known] > 0.95).all()


def test_the_command_writes_them(positive_run, behind, command, tmp_path) -> None:
    stars = behind[0].select(slice(0, 30))
    write_stars(tmp_path / "stars.parquet", stars, overwrite=False)
    line = f"predict {positive_run.path} {tmp_path}/stars.parquet --distances"
    said = command(f"{line} -o {tmp_path}/distances.parquet")
    assert said.exit_code == 0, said.output
    columns, units, _ = read_table(tmp_path / "distances.parquet")
    expected = distance_columns(positive_run, stars)
    for name in ("posterior_distance", "posterior_distance_std", "outlier"):
        np.testing.assert_array_equal(columns[name], expected[name])
    assert units["posterior_distance_std"] == "pc"
    for option in ("--prefix a_", "--declare-band A_V", "--map l=glon"):
        wrong = command(f"{line} {option} -o {tmp_path}/other.parquet")
        assert wrong.exit_code == 2 and option.split()[0] in wrong.output
        assert not (tmp_path / "other.parquet").exists()
    bare = replace(stars, distance_error=None)
    with pytest.raises(InputError, match="distance_error"):
        distance_columns(positive_run, bare)
