"""Predictions of a run at places themselves: the one use of a posterior after a fit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from pipelines.base.quantiles import KINDS, quantile
from pipelines.maps.answers import Found, Kinds, probability
from pipelines.maps.opening import open_run
from pipelines.maps.places import Places
from pipelines.maps.stored import Stored
from pipelines.run.folder import Run, read_run
from pipelines.run.predict import predict_columns


@dataclass(frozen=True, kw_only=True, repr=False)
class ExactMap(Stored):
    """The map of a ``run`` with moments from its posterior, not from its store."""

    exact: Run

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return KINDS

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        run, head = self.exact, "extinction_" if integrated else "density_"
        columns = predict_columns(run.plan, run.posterior, places)
        mean, std = columns[f"{head}mean"], columns[f"{head}std"]
        return {
            kind: columns[f"{head}{kind}"]
            if kind in KINDS
            else quantile(mean, std, probability(kind), positive=run.plan.is_lognormal)
            for kind in kinds
        }


def open_exactly(path: Path) -> ExactMap:
    """Open a run for exact predictions.

    Raises `InputError` if the folder is not a run, is incomplete, or was altered.
    """
    run, stored = read_run(path), open_run(path)
    about = {item.name: getattr(stored, item.name) for item in fields(stored)}
    return ExactMap(**about, exact=run)
