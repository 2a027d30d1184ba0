"""Every method in a process of its own, one after the other, on the same cores."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers_problem import HALF, Mock
from peers_worker import RECORD, Seconds
from scoring import read_prediction

from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_table

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one method predicts at the test stars, and what that took.

    ``prediction`` is as in `peers_worker.Work.add`.
    """

    method: str
    grid: str
    name: str
    taken: Seconds
    prediction: dict[str, np.ndarray]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the processes run.

    Parameters
    ----------
    threads
        Cores that a process may use, and threads of its pools.
    limit
        Longest that one process may take [s].
    peers_python
        Interpreter that has the peers.
    """

    threads: int
    limit: float
    peers_python: str

    def pin(self) -> None:
        """Keep this process and those that it starts on the first cores."""
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))[: self.threads]
            os.sched_setaffinity(0, cores)

    def missing(self, modules: Sequence[str]) -> str | None:
        """Why the peers' interpreter cannot import these; ``None`` if it can."""
        if not modules:
            return None
        code = "; ".join(f"import {module}" for module in modules)
        try:
            done = subprocess.run(
                [self.peers_python, "-c", code],
                capture_output=True,
                text=True,
                check=False,
                env=self._environment(),
            )
        except OSError as error:
            return f"{self.peers_python}: {error.strerror}"
        lines = done.stderr.strip().splitlines()
        return None if done.returncode == 0 else (lines or ["failed"])[-1]

    def run(self, command: Sequence[str], log: Path) -> Seconds:
        """Run to the end and return what it took, children included.

        Raises
        ------
        InputError
            If it fails or takes longer than the limit.
        """
        before, started = _children(), time.perf_counter()
        with log.open("w", encoding="utf-8") as stream:
            try:
                done = subprocess.run(
                    command,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=self.limit,
                    env=self._environment(),
                )
            except subprocess.TimeoutExpired:
                raise InputError(f"stopped after {self.limit:g} s: {log}") from None
        if done.returncode:
            lines = log.read_text(encoding="utf-8").strip().splitlines()
            raise InputError(f"{(lines or ['no output'])[-1]} (see {log})")
        wall = time.perf_counter() - started
        return Seconds(cpu=_children() - before, wall=wall)

    def _environment(self) -> dict[str, str]:
        pools = ("OMP", "OPENBLAS", "MKL", "NUMBA")
        threads = {f"{pool}_NUM_THREADS": str(self.threads) for pool in pools}
        # XLA's pool: with a single thread a call back to Python waits for ever.
        xla = dict.fromkeys(("NPROC", "PJRT_NPROC"), str(max(self.threads, 4)))
        return os.environ | threads | xla | {"OMP_WAIT_POLICY": "PASSIVE"}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_dustmap(
    machine: Machine,
    mock: Mock,
    folder: Path,
    shape: tuple[int, ...],
    *,
    method: str,
    settings: Sequence[str],
) -> list[Row]:
    """`dustmap fit` and `dustmap predict` as a user would run them.

    The fit's seconds are those of the whole process: start, reading, the search of
    hyperparameters, posterior samples, writing.
    """
    box = [f"box.{a}=[{-h:g},{h:g}]" for a, h in zip("xyz", HALF, strict=True)]
    chosen = [*box, f"box.shape={list(shape)}", "data.holdout=0", *settings]
    program = [sys.executable, "-c", "from pipelines.cli import main; main()"]
    output, predicted = folder / "run", folder / "predicted.parquet"
    options = [part for text in chosen for part in ("--set", text)]
    fit = [*program, "fit", str(mock.stars), "-o", str(output), "--overwrite"]
    taken = machine.run([*fit, *options], folder / "fit.log")
    predict = [*program, "predict", str(output), str(mock.targets), "--overwrite"]
    prediction = machine.run([*predict, "-o", str(predicted)], folder / "predict.log")
    columns, _, _ = read_table(predicted)
    facts = {"settings": chosen, "prediction": prediction.as_dict()}
    return [
        Row(
            method=method,
            grid=_times(shape),
            name="posterior",
            taken=taken,
            prediction=read_prediction(columns),
            facts=facts,
        )
    ]


def run_peer(
    machine: Machine,
    script: str,
    problem: Path,
    folder: Path,
    *,
    method: str,
    grid: str,
    settings: dict[str, Any],
    extra: float = 0.0,
) -> list[Row]:
    """One of the peers' scripts; ``extra`` CPU seconds were spent for it before."""
    command = [machine.peers_python, str(_HERE / script), str(problem)]
    total = machine.run(
        [*command, json.dumps(settings), str(folder)], folder / "log.txt"
    )
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    facts = record["facts"] | {"process": total.as_dict(), "settings": settings}
    rows = []
    for row in record["rows"]:
        with np.load(folder / row.pop("file")) as stored:
            prediction = {name: stored[name] for name in stored.files}
        cpu, wall = row.pop("cpu_seconds") + extra, row.pop("wall_seconds") + extra
        rows.append(
            Row(
                method=method,
                grid=grid,
                name=row.pop("name"),
                taken=Seconds(cpu=cpu, wall=wall),
                prediction=prediction,
                facts=facts | row,
            )
        )
    return rows


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
