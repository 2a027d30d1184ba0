"""Kill -9 at every state and at random moments: the last good state is used.

Signals at known moments are those of `test_resume` and `test_resumed_ranks`.
"""

import shutil
import signal
import time
from pathlib import Path

import interrupted
import numpy as np
import pytest
from killing import Server
from ranks import on_ranks, start

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError
from pipelines.config import FitConfig, to_toml
from pipelines.fit import fit
from pipelines.formats.fits import read_fits
from pipelines.formats.healpix import read_healpix
from pipelines.formats.zarr import read_zarr
from pipelines.run.folder import read_run
from pipelines.saving.state_file import read_state
from pipelines.saving.workspace import unfinished

OTHERS = ("gaussian", "svi", "shared")
# Kills of one of two ranks; without an answer for so long [s] one counts as lost.
_KILLS, _TIMEOUT = 6, 20.0
FIT = "fit stars.parquet -c fit.toml -o run --resume"
EXPORTS = {
    "zarr": ("export whole --zarr map.zarr --overwrite", "map.zarr"),
    "fits": ("export whole --fits map.fits --overwrite", "map.fits"),
    "healpix": (
        "export whole --healpix map.healpix.fits --overwrite",
        "map.healpix.fits",
    ),
}


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


def prepared(server, folder, **how):
    """A folder with a catalogue and the run that nothing interrupted; its seconds."""
    case = interrupted.case_in(folder, **how)
    (folder / "fit.toml").write_text(to_toml(FitConfig.model_validate(case.plain)))
    ended = server.run(folder, FIT)
    assert ended.status == 0, ended.said
    (folder / "run").rename(folder / "whole")
    return ended.seconds


def require_unfinished(folder: Path) -> None:
    """What a killed fit left is whole, or nothing."""
    if (folder / "run").exists():
        # Killed between the rename and the end.
        read_run(folder / "run")
    elif (work := unfinished(folder / "run")) is not None and work.is_saved:
        read_state(work.state)


def kill_and_go_on(server, folder, kills, seconds, rng):
    """Kill a fit so many times, a new one once it is done; how it ended each time."""
    table = {"injected": 0, "survived": 0, "lost": 0, "in time": 0}
    while table["injected"] < kills:
        ended = server.run(folder, FIT, after=rng.uniform(0, seconds))
        if ended.status == -signal.SIGKILL:
            table["injected"] += 1
            try:
                require_unfinished(folder)
                table["survived"] += 1
            except InputError:
                table["lost"] += 1
        else:
            assert ended.status == 0, ended.said
            table["in time"] += 1
            interrupted.require_same(folder / "whole", folder / "run")
            shutil.rmtree(folder / "run")
    ended = server.run(folder, FIT)
    assert ended.status == 0, ended.said
    interrupted.require_same(folder / "whole", folder / "run")
    return table


@pytest.mark.parametrize(
    "name", ["lognormal", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
def test_a_fit_killed_at_each_of_its_states_ends_with_the_same_bits(
    server, tmp_path, name
):
    case = interrupted.cases(tmp_path)[name]
    case.plain["checkpoint"] = {"iterations": 2}
    folder, kills = case.output.parent, []
    (folder / "fit.toml").write_text(to_toml(FitConfig.model_validate(case.plain)))
    assert server.run(folder, FIT).status == 0
    (folder / "run").rename(folder / "whole")
    while (ended := server.run(folder, FIT, at_state=True)).status == -signal.SIGKILL:
        kills.append(read_state(case.state_file)["stage"])
    assert ended.status == 0, ended.said
    # The last one killed had been judged: its state is there to be written as a run.
    assert kills[-1] == "judge" and any("under way" in stage for stage in kills)
    assert kills.count("judge") == 1
    interrupted.require_same(folder / "whole", folder / "run")


@pytest.mark.slow
def test_a_fit_killed_three_times_ends_with_the_same_bits(server, tmp_path):
    seconds = prepared(server, tmp_path)
    rng = np.random.default_rng(3)
    table = kill_and_go_on(server, tmp_path, 3, 0.7 * seconds, rng)
    assert table["survived"] == 3 and table["lost"] == 0


READERS = {"zarr": read_zarr, "fits": read_fits, "healpix": read_healpix}


def kill_exports(server, folder, kind, kills, rng):
    """Kill an export so many times, over an old one or none; the file, or none."""
    line, name = EXPORTS[kind]
    ended = server.run(folder, line)
    assert ended.status == 0, ended.said
    table = {"injected": 0, "survived": 0, "lost": 0, "in time": 0}
    while table["injected"] < kills:
        if table["injected"] % 2:
            remove(folder / name)
        killed = server.run(folder, line, after=rng.uniform(0, ended.seconds))
        if killed.status != -signal.SIGKILL:
            table["in time"] += 1
            continue
        table["injected"] += 1
        try:
            if (folder / name).exists():
                READERS[kind](folder / name)
            table["survived"] += 1
        except InputError:
            table["lost"] += 1
    assert server.run(folder, line).status == 0
    READERS[kind](folder / name)
    return table


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_of_more_than_fifty_kills_none_costs_more_than_the_last_step(
    server, tmp_path, capsys
):
    rng = np.random.default_rng(50)
    tables = {}

    def told(name: str, table: dict[str, int]) -> None:
        tables[name] = table
        row = (table["injected"], table["survived"], table["lost"])
        with capsys.disabled():
            print(f"| {name} | {' | '.join(map(str, row))} |", flush=True)

    with capsys.disabled():
        print("\n| killed in | faults injected | survived | lost |\n|---|---|---|---|")
    for name, kills, learns in (("fit", 22, False), ("fit with learning", 6, True)):
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        seconds = prepared(server, folder, learns=learns)
        told(name, kill_and_go_on(server, folder, kills, seconds, rng))
    for kind in EXPORTS:
        told(kind, kill_exports(server, tmp_path / "fit", kind, 8, rng))
    total = {key: sum(t[key] for t in tables.values()) for key in ("injected", "lost")}
    assert total["injected"] >= 50 and total["lost"] == 0


def _fit(group: Group, folder: Path, plain: dict) -> bool:
    config = FitConfig.model_validate(plain)
    fit(folder / "stars.parquet", folder / "run", config, resume=True, group=group)
    return True


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
    plain = interrupted.case_in(tmp_path, samples=8).plain
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
            read_run(tmp_path / "run")
            shutil.rmtree(tmp_path / "run")
            continue
        table["injected"] += 1
        # The other one ends with an error, even if they had not met yet, or had ended:
        # the first alone writes the run.
        ended = tmp_path / f"try{number}" / f"{1 - rank}.pt"
        assert told or (rank == 0 and ended.exists())
        if (work := unfinished(tmp_path / "run")) is None:
            continue
        try:
            if work.is_saved:
                read_state(work.state)
            table["taken up"] += 1
        except InputError:
            table["lost"] += 1
    on_ranks(_fit, 2, tmp_path, plain)
    interrupted.require_same(tmp_path / "whole", tmp_path / "run")
    with capsys.disabled():
        print(f"\n| ranks of a fit | {table} |", flush=True)
    assert table["lost"] == 0 and table["taken up"] > _KILLS / 3
