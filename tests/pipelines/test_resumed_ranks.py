"""A fit with noise that neighbours share: two ranks, stopped and resumed, and one."""

from __future__ import annotations

from pathlib import Path

import one_cloud
import pytest
import torch
from ranks import on_ranks

from dustmap.distributed.group import Group
from pipelines.base.errors import Stopped
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.fit.context import Context
from pipelines.model import full_batch
from pipelines.run.folder import read_run

# Solves stop at a tenth of the gradient, by rounding an iteration earlier or later:
# only steps until little is left to gain [nats per star] end at the same place.
TO_THE_END = 1e-12


def _settings(teams: int, samples: int) -> FitConfig:
    plain = one_cloud.positive_settings(
        samples=samples, dtype="float64", tolerance=1e-11, max_iterations=2000
    )
    plain["box"]["spacing"] = 140.0
    plain["checkpoint"] = {"iterations": 3}
    plain["inference"]["teams"] = teams
    plain["data"], plain["model"]["residual"] = {"validation": 0.3}, True
    return FitConfig.model_validate(plain)


def _stopped_and_resumed(group: Group, folder: Path, teams: int) -> str:
    """The second checkpoint within the inference ends it, as a signal would."""
    full_batch._NEWTON_TOLERANCE = TO_THE_END
    source, output = folder / "stars.parquet", folder / "run"
    config = _settings(teams, samples=2 * teams)
    plain, saves = Context._write, 0

    def write(self: Context) -> None:
        nonlocal saves
        assert self._latest is not None
        saves += self._latest[0].progress is not None
        plain(self)
        if saves == 2:
            raise Stopped("stopped by the test")

    Context._write = write
    ended = ""
    try:
        fit(source, output, config, group=group)
    except Stopped as reason:
        ended = str(reason)
    Context._write = plain
    # The first rank was the last to write.
    group.meet()
    fit(source, output, config, resume=True, group=group)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("teams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_ranks_stopped_and_resumed_write_the_run_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teams: int
) -> None:
    monkeypatch.setattr(full_batch, "_NEWTON_TOLERANCE", TO_THE_END)
    stars = tmp_path / "stars.parquet"
    write_stars(stars, one_cloud.catalogue(400), overwrite=False)
    report = fit(stars, tmp_path / "alone", _settings(1, samples=2 * teams))
    assert any(m.startswith("residual: the prior") for m in report.messages)
    ended = on_ranks(_stopped_and_resumed, 2, tmp_path, teams, seconds=300.0)
    assert ended == ["stopped by the test"] * 2
    one, two = read_run(tmp_path / "alone"), read_run(tmp_path / "run")
    scale = float(one.posterior.samples.abs().max())
    for name in ("mean", "samples"):
        mine, other = getattr(one.posterior, name), getattr(two.posterior, name)
        assert float((mine - other).abs().max()) / scale < 1e-4
    torch.testing.assert_close(one.support, two.support)
    assert one.summary["entries_of_W"] == two.summary["entries_of_W"]
