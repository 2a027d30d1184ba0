"""What a peer's process shares with the others: the problem, a stopwatch, the record.

Numpy and scipy alone, since it runs under another interpreter than the rest.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import scipy.stats
from scoring import WIDTHS

PROBLEM, RECORD = "problem.npz", "record.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """CPU time (user and system, of all threads) and wall time [s]."""

    cpu: float
    wall: float

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(cpu=self.cpu - other.cpu, wall=self.wall - other.wall)

    def as_dict(self) -> dict[str, float]:
        """For a record."""
        return {"cpu_seconds": self.cpu, "wall_seconds": self.wall}


def now() -> Seconds:
    """This process' clocks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Seconds(cpu=used.ru_utime + used.ru_stime, wall=time.perf_counter())


@contextmanager
def stopwatch() -> Iterator[list[Seconds]]:
    """Fill a list with the one entry that the block took."""
    taken: list[Seconds] = []
    started = now()
    yield taken
    taken.append(now() - started)


@dataclass(slots=True, kw_only=True)
class Work:
    """A peer's problem and its growing record.

    Parameters
    ----------
    arrays
        ``problem.npz``, see the module that writes it.
    settings
        The method's own.
    output
        Folder for predictions and the record.
    """

    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    output: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def matrix(self, name: str) -> scipy.sparse.csr_matrix:
        """One of the sparse matrices, on the points of the torus."""
        parts = [self.arrays[f"{name}_{part}"] for part in ("data", "indices")]
        indptr = self.arrays[f"{name}_indptr"]
        shape = (len(indptr) - 1, int(np.prod(self.arrays["torus"])))
        return scipy.sparse.csr_matrix((*parts, indptr), shape=shape)

    def add(
        self,
        name: str,
        taken: Seconds,
        predictions: dict[str, np.ndarray],
        **facts: Any,
    ) -> None:
        """Keep one row: ``predictions`` holds ``extinction`` [mag], ``density``
        [mag/pc] and optionally ``extinction_interval``, ``density_interval``, shape
        ``(4, T)``: lower and upper end at 68%, then at 95%.
        """
        file = f"{name.replace(' ', '_').replace(',', '')}.npz"
        np.savez(self.output / file, **predictions)  # type: ignore[arg-type]
        self.rows.append({"name": name, "file": file, **taken.as_dict(), **facts})

    def finish(self) -> None:
        """Write the record."""
        text = json.dumps({"rows": self.rows, "facts": self.facts}, indent=1)
        (self.output / RECORD).write_text(text + "\n", encoding="utf-8")


def read_work() -> Work:
    """The problem that the command line names: folder, settings (JSON), output."""
    parser = argparse.ArgumentParser(description="One peer of the benchmark.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("output", type=Path)
    chosen = parser.parse_args()
    with np.load(chosen.folder / PROBLEM) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return Work(arrays=arrays, settings=chosen.settings, output=chosen.output)


def mirrored_interval(samples: np.ndarray) -> np.ndarray:
    """Intervals from samples in pairs mirrored at the mean, shape ``(S, T)``.

    S/2 pairs are as many degrees of freedom: so few need Student's wider quantiles.
    """
    spread = samples.std(axis=0)
    student = scipy.stats.t(df=len(samples) // 2)
    factors = [student.ppf(scipy.stats.norm.cdf(w)) for w in WIDTHS]
    return np.stack(
        [samples.mean(axis=0) + s * w * spread for w in factors for s in (-1, 1)]
    )
