"""A fit by several processes: what they read, what they find, and when one dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import one_cloud
import pytest
import torch
from ranks import on_ranks, start

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars, read_stars_together, write_stars
from pipelines.catalog.tables import open_table
from pipelines.config import FitConfig
from pipelines.fit import fit, judging
from pipelines.fit.launch import own_threads
from pipelines.run.folder import read_run
from pipelines.saving.workspace import unfinished


def _partitions(folder: Path) -> Path:
    """Three files of several row groups, with names, some missing, and counts."""
    folder.mkdir()
    stars = one_cloud.catalogue(90)
    names = np.array([f"Gaia α {n}" for n in range(90)], dtype=object)
    names[::7] = None
    for number, (a, b) in enumerate([(0, 50), (50, 51), (51, 90)]):
        part = stars.select(slice(a, b))
        columns = {
            **part.columns(),
            "source_id": names[a:b],
            "visits": np.ma.masked_array(np.arange(a, b), mask=np.arange(a, b) < 60),
        }
        with open_table(
            folder / f"part{number}.parquet", units={}, overwrite=False
        ) as table:
            table.write(columns)
            table.meta = {"part": number}
    return folder


def _equal(one: Stars, other: Stars, names: set[str]) -> None:
    assert set(other.columns()) == names
    for name in names:
        np.testing.assert_array_equal(one.columns()[name], other.columns()[name])


def _read(group: Group, folder: Path) -> dict[str, Any]:
    found = read_stars_together(folder, group)
    _equal(
        read_stars(folder),
        found,
        set(read_stars(folder).columns())
        if group.first
        else {"l", "b", "distance", "extinction", "extinction_error"},
    )
    group.meet()
    (folder / "part3.parquet").touch()
    group.meet()
    try:
        read_stars_together(folder, group)
    except InputError as error:
        return {"rows": len(found), "meta": found.meta, "error": str(error)}
    return {}


@pytest.mark.slow
def test_ranks_read_their_own_and_have_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.catalog.tables.ROWS_PER_BATCH", 8)
    folder = _partitions(tmp_path / "stars")
    found = on_ranks(_read, 3, folder)
    assert [one["rows"] for one in found] == [90] * 3
    assert found[0]["meta"] == found[2]["meta"] == read_meta(folder)
    for one in found:
        assert "part3.parquet is not a parquet table" in one["error"]


def read_meta(folder: Path) -> dict[str, Any]:
    (folder / "part3.parquet").unlink()
    return read_stars(folder).meta


def _fit(group: Group, folder: Path, config: FitConfig) -> None:
    fit(folder / "stars.parquet", folder / "run", config, group=group)


def _catalogue(folder: Path, count: int = 100) -> Path:
    write_stars(folder / "stars.parquet", one_cloud.catalogue(count), overwrite=False)
    return folder


def _linear(engine: str) -> FitConfig:
    """A fit whose solves alone decide where it ends."""
    plain = one_cloud.settings(samples=2, engine=engine, dtype="float64")
    plain["inference"] |= {"tolerance": 1e-11, "max_iterations": 2000}
    plain["box"]["spacing"] = 140.0
    plain["svi"] = {"epochs": 2, "pcg_tolerance": 1e-11}
    return FitConfig.model_validate(plain)


@pytest.mark.parametrize(
    ("engine", "teams"),
    [
        ("full-batch", 2),
        pytest.param("full-batch", 1, marks=pytest.mark.slow),
        pytest.param("svi", 1, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_write_the_run_of_one(
    tmp_path: Path, engine: str, teams: int
) -> None:
    folder, config = _catalogue(tmp_path), _linear(engine)
    fit(folder / "stars.parquet", folder / "alone", config)
    inference = config.inference.model_copy(update={"teams": teams})
    shared = config.model_copy(update={"inference": inference})
    on_ranks(_fit, 2, folder, shared, seconds=300.0)
    one, two = read_run(folder / "alone"), read_run(folder / "run")
    assert one.plan == two.plan
    assert one.summary["counts"] == two.summary["counts"]
    assert one.summary["held_out"] == pytest.approx(two.summary["held_out"])
    scale = float(one.posterior.samples.abs().max())
    for name in ("mean", "samples"):
        mine, other = getattr(one.posterior, name), getattr(two.posterior, name)
        error = float((mine - other).abs().max()) / scale
        print(engine, name, error)
        assert error < 1e-8
    torch.testing.assert_close(one.support, two.support)


def test_teams_of_different_sizes_are_refused(tmp_path: Path) -> None:
    config = FitConfig.model_validate({"inference": {"teams": 3}})
    with pytest.raises(InputError, match=r"inference\.teams = 3"):
        fit(_catalogue(tmp_path) / "stars.parquet", tmp_path / "run", config)


def _endless() -> FitConfig:
    """Far more samples than can be drawn until somebody dies."""
    plain = one_cloud.positive_settings(samples=1000)
    plain["box"]["spacing"] = 140.0
    return FitConfig.model_validate(plain)


def test_the_others_end_when_a_rank_is_killed(tmp_path: Path) -> None:
    folder = _catalogue(tmp_path)
    ranks = start(_fit, 2, tmp_path, folder, _endless(), timeout=20.0)
    _wait_until(
        lambda: (found := unfinished(folder / "run")) and found.facts.get("last")
    )
    assert ranks[1].pid is not None
    os.kill(ranks[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    ranks[0].join(60.0)
    taken = time.monotonic() - killed
    alive = ranks[0].is_alive()
    ranks[0].kill()
    assert not alive and taken < 60.0
    text = (tmp_path / "0.failed").read_text()
    assert "rank 0 of 2: another process ended or did not answer" in text
    assert not (folder / "run").exists()


def _wait_until(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s"
        time.sleep(0.05)


def _judging_late(group: Group, folder: Path, config: FitConfig) -> None:
    found = judging.held_out_score

    def late(*given: Any) -> Any:
        time.sleep(25.0)
        return found(*given)

    judging.held_out_score = late
    _fit(group, folder, config)


@pytest.mark.slow
def test_the_others_wait_while_rank_0_judges_alone(tmp_path: Path) -> None:
    folder = _catalogue(tmp_path)
    on_ranks(_judging_late, 2, folder, _linear("full-batch"), timeout=20.0)
    assert read_run(folder / "run").summary["held_out"]


def test_threads_are_shared_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [own_threads(n) for n in (1, 3, 16)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert own_threads(2) is None
