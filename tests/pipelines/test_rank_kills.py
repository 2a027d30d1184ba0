"""One of several ranks killed at random moments: the rest ends, and all is taken up."""

import shutil
import time
from pathlib import Path

import interrupted
import numpy as np
import pytest
from ranks import on_ranks, start

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.saving.workspace import unfinished
from pipelines.verify import verify

_KILLS = 6
# Without an answer for so long [s], another rank counts as lost.
_TIMEOUT = 20.0


def _fit(group: Group, folder: Path, plain: dict) -> bool:
    config = FitConfig.model_validate(plain)
    fit(folder / "stars.parquet", folder / "run", config, resume=True, group=group)
    return True


def _settings(folder: Path) -> dict:
    plain = interrupted.case_in(folder, samples=8).plain
    return {**plain, "checkpoint": {"iterations": 1}}


def _killed_at(moment: float, rank: int, place: Path, folder: Path, plain: dict) -> str:
    """How a fit ended of which one rank was killed: what the other one said of it."""
    place.mkdir()
    ranks = start(_fit, 2, place, folder, plain, timeout=_TIMEOUT)
    time.sleep(moment)
    # Nothing happens to one that has ended.
    ranks[rank].kill()
    killed = time.monotonic()
    for process in ranks:
        process.join(3 * _TIMEOUT)
    alive = any(process.is_alive() for process in ranks)
    for process in ranks:
        process.kill()
    assert not alive, f"a rank ran on {time.monotonic() - killed:.0f} s after a kill"
    told = place / f"{1 - rank}.failed"
    return told.read_text() if told.exists() else ""


@pytest.mark.slow
def test_of_ranks_killed_at_random_moments_none_loses_the_fit(tmp_path, capsys):
    plain = _settings(tmp_path)
    begun = time.monotonic()
    on_ranks(_fit, 2, tmp_path, plain)
    seconds = time.monotonic() - begun
    (tmp_path / "run").rename(tmp_path / "whole")
    rng = np.random.default_rng(7)
    table = {"injected": 0, "lost": 0, "in time": 0, "taken up": 0}
    while table["injected"] < _KILLS:
        number = sum(table.values())
        moment, rank = rng.uniform(0.2, 0.7) * seconds, int(rng.integers(2))
        told = _killed_at(moment, rank, tmp_path / f"try{number}", tmp_path, plain)
        if (tmp_path / "run").exists():
            table["in time"] += 1
            verify(tmp_path / "run")
            shutil.rmtree(tmp_path / "run")
            continue
        table["injected"] += 1
        # The other one ends with an error, even if they had not met yet, or had ended:
        # the first alone writes the run.
        ended = tmp_path / f"try{number}" / f"{1 - rank}.pt"
        assert told or (rank == 0 and ended.exists())
        if unfinished(tmp_path / "run") is None:
            continue
        try:
            verify(tmp_path / "run")
            table["taken up"] += 1
        except InputError:
            table["lost"] += 1
    on_ranks(_fit, 2, tmp_path, plain)
    interrupted.require_same(tmp_path / "whole", tmp_path / "run")
    with capsys.disabled():
        print(f"\n| ranks of a fit | {table} |", flush=True)
    assert table["lost"] == 0 and table["taken up"] > _KILLS / 3
