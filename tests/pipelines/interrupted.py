"""Fits that are interrupted at a place that is known, and what they leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import one_cloud
import pytest
import torch

import pipelines.fit.context
from pipelines.base.errors import Stopped
from pipelines.base.progress import Progress
from pipelines.catalog.schema import read_table, write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.run.folder import read_run
from pipelines.run.status import read_metrics
from pipelines.saving.state_file import read_state
from pipelines.saving.workspace import STATE


def settings(**inference: Any) -> dict[str, Any]:
    """A lognormal fit of a second that saves itself wherever it can."""
    plain = one_cloud.positive_settings(**{"samples": 2, **inference})
    plain["box"]["spacing"] = 140.0
    plain["checkpoint"] = {"iterations": 1}
    return plain


@dataclass(frozen=True, kw_only=True)
class Case:
    """A catalogue, how it is fitted, and where its run goes."""

    source: Path
    output: Path
    plain: dict[str, Any]

    def fit(self, **how: Any):
        """Fit it, from where it stands if that is asked for."""
        config = FitConfig.model_validate(self.plain)
        return fit(self.source, self.output, config, **how)

    @property
    def workspace(self) -> Path:
        """Where it works."""
        return self.output.with_name(self.output.name + ".unfinished")

    def stop(self, after: int, *, by: signal.Signals = signal.SIGTERM, **how: Any):
        """Fit it, with a signal just before this checkpoint is written."""
        stages = []

        def noted(stage: str) -> None:
            stages.append(stage)
            if len(stages) == after:
                os.kill(os.getpid(), by)

        with saved(noted), pytest.raises(Stopped) as ended:
            self.fit(**how)
        return str(ended.value)

    def stop_within(self, iteration: int) -> str:
        """Fit it, with a signal after so many iterations of its inference."""
        update, seen = Progress.update, []

        def counting(self: Progress, *args: Any, **shown: Any) -> None:
            update(self, *args, **shown)
            seen.append(shown)
            if len(seen) == iteration:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Progress, "update", counting)
            with pytest.raises(Stopped) as ended:
                self.fit()
        return str(ended.value)

    @property
    def state_file(self) -> Path:
        """Where it saves itself."""
        return self.workspace / STATE

    @property
    def state(self) -> dict[str, Any]:
        """What it has saved."""
        return read_state(self.state_file)


@contextmanager
def saved(noted: Callable[[str], object]) -> Iterator[None]:
    """Call a function with the stage of every state, just before it is written."""
    written = pipelines.fit.context.write_state

    def write(path: Path, content: dict[str, Any]) -> None:
        noted(content["stage"])
        written(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines.fit.context, "write_state", write)
        yield


def case_in(folder: Path, *, learns: bool = False, **inference: Any) -> Case:
    """The cloud's stars in a folder, to be fitted there; perhaps their scale, too."""
    source = folder / "stars.parquet"
    if not source.exists():
        write_stars(source, one_cloud.catalogue(100), overwrite=False)
    plain = settings(**inference)
    if learns:
        del plain["prior"]["lengthscale"]
    return Case(source=source, output=folder / "run", plain=plain)


def cases(folder: Path) -> dict[str, Case]:
    """A case for every engine, density and noise, each in a folder of its own."""
    gaussian = one_cloud.settings(samples=2)
    gaussian["box"]["spacing"] = 140.0
    gaussian["model"]["outliers"] = True
    svi = one_cloud.settings(engine="svi", samples=2)
    svi["box"]["spacing"], svi["prior"]["lengthscale"] = 175.0, 260.0
    svi["svi"] = {"epochs": 2, "nodes": 8, "quadrature": "gauss-legendre"}
    shared = settings()
    shared["data"], shared["model"]["residual"] = {"validation": 0.4}, True
    plain = {"lognormal": None, "gaussian": gaussian, "svi": svi, "shared": shared}
    found = {}
    for name, chosen in plain.items():
        place = folder / name
        place.mkdir()
        if name == "shared":
            write_stars(
                place / "stars.parquet", one_cloud.catalogue(200), overwrite=False
            )
        found[name] = case_in(place)
        if chosen is not None:
            chosen["checkpoint"] = {"iterations": 1}
            found[name] = replace(found[name], plain=chosen)
    return found


def require_same(first: Path, second: Path) -> None:
    """Two runs with the same bits in everything but times and names."""
    one, other = read_run(first), read_run(second)
    assert torch.equal(one.posterior.mean, other.posterior.mean)
    assert torch.equal(one.posterior.samples, other.posterior.samples)
    assert torch.equal(one.support, other.support)
    assert one.plan == other.plan
    kept = ("counts", "held_out", "converged", "messages", "student_degrees")
    for name in kept:
        assert one.summary.get(name) == other.summary.get(name), name
    for name in ("held_out.parquet", "stars.parquet"):
        tables = [read_table(path / name)[0] for path in (first, second)]
        assert tables[0].keys() == tables[1].keys()
        for column in tables[0]:
            np.testing.assert_array_equal(tables[0][column], tables[1][column])
    steps = [timeless(path / "metrics.jsonl") for path in (first, second)]
    assert steps[0] == steps[1]


def timeless(path: Path) -> list[dict[str, Any]]:
    """Records without their seconds."""
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in read_metrics(path)
    ]
