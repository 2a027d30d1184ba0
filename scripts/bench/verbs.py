"""The command line's verbs in processes of their own, with time and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.catalog.schema import read_table

_MEASURED = Path(__file__).resolve().with_name("measured.py")
_PROGRAM = (sys.executable, "-c", "from pipelines.cli import main; main()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """CPU time of all threads and wall time [s], peak resident memory [byte]."""

    cpu: float
    wall: float
    peak: float

    def row(self, prefix: str = "") -> dict[str, float]:
        """For a table."""
        return {
            f"{prefix}wall [s]": self.wall,
            f"{prefix}CPU [s]": self.cpu,
            f"{prefix}peak [GiB]": self.peak / 2**30,
        }


def dustmap(arguments: Sequence[str | Path], log: Path, *, keep: bool = False) -> Taken:
    """Run ``dustmap ARGUMENTS`` to the end.

    With ``keep`` what the same command left, if it ended well, stands.

    Raises
    ------
    RuntimeError
        If it fails; the message is its last line.
    """
    words = [str(word) for word in arguments]
    print(f"dustmap {' '.join(words)}", file=sys.stderr, flush=True)
    return measured_run([*_PROGRAM, *words], log, keep=keep)


def measured_run(run: list[str], log: Path, *, keep: bool = False) -> Taken:
    """Run a command to the end, as `dustmap` does."""
    record = log.with_suffix(".json")
    if not (keep and _ended_well(record, run)):
        # Without site-packages: the smaller the process, the lower what it can hide.
        command = [sys.executable, "-S", str(_MEASURED), str(record), str(log)]
        subprocess.run([*command, *run], check=True)
    facts = _facts(record)
    del facts["command"]
    if facts.pop("status"):
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise RuntimeError(f"{(lines or ['no output'])[-1]} (see {log})")
    return Taken(**facts)


def _facts(record: Path) -> dict[str, Any]:
    return json.loads(record.read_text(encoding="utf-8"))


def _ended_well(record: Path, command: list[str]) -> bool:
    """Whether the record is one of this command, without an error."""
    if not record.is_file():
        return False
    facts = _facts(record)
    return facts.get("command") == command and not facts["status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A map, its own summary and plan, and what it predicts at the targets."""

    run: Path
    plan: dict[str, Any]
    summary: dict[str, Any]
    columns: dict[str, np.ndarray]
    fit: Taken
    predict: Taken

    def facts(self) -> dict[str, Any]:
        """Size, scales and state of the fit, for a table."""
        plan, counts = self.plan, self.summary["counts"]
        return {
            "stars": counts["fitted"],
            "grid": plan["grid"]["shape"],
            "spacing [pc]": "×".join(f"{h:.4g}" for h in plan["grid"]["spacing"]),
            "ℓ [pc]": float(plan["lengthscale"][0]),
            "std": float(plan["std"]),
            "converged": "yes" if self.summary["converged"] else "no",
        }

    def seconds(self) -> list[dict[str, Any]]:
        """Wall time of the fit by part, a row each; start and writing by difference."""
        parts = dict(self.summary["seconds"])
        parts["start, writing"] = self.fit.wall - sum(parts.values())
        parts["predict (a process of its own)"] = self.predict.wall
        return [
            {"part": name, "wall [s]": time, "of the fit": time / self.fit.wall}
            for name, time in parts.items()
        ]


def fit_and_predict(
    folder: Path,
    stars: Path,
    targets: Path,
    settings: Sequence[str],
    *,
    keep: bool = False,
) -> Fitted:
    """`dustmap fit` on one table and `dustmap predict` at another."""
    folder.mkdir(parents=True, exist_ok=True)
    run, predicted = folder / "run", folder / "predicted.parquet"
    options = [word for pair in settings for word in ("--set", pair)]
    fit = dustmap(
        ["fit", stars, "-o", run, "--overwrite", *options],
        folder / "fit.log",
        keep=keep,
    )
    predict = dustmap(
        ["predict", run, targets, "-o", predicted, "--overwrite"],
        folder / "predict.log",
        keep=keep,
    )
    description = json.loads((run / "run.json").read_text(encoding="utf-8"))
    columns, _, _ = read_table(predicted)
    return Fitted(
        run=run,
        plan=description["plan"],
        summary=description["summary"],
        columns=columns,
        fit=fit,
        predict=predict,
    )
