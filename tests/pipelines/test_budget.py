"""What a fit says before it begins, and when it refuses to."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from dustmap.distributed.group import Group
from dustmap.grid import Grid, Torus
from dustmap.models.means import ConstantMean
from dustmap.tori import Tori
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.fit import budget as module
from pipelines.fit.budget import require_memory
from pipelines.fit.context import Context
from pipelines.fit.state import FitState
from pipelines.model.plan import Plan

GRID = Grid(shape=(40, 40, 20), spacing=(10.0,) * 3, origin=(-200.0, -200.0, -100.0))
PLAN = Plan(
    tori=Tori(tori=(Torus(grid=GRID, shape=(48, 48, 32)),)),
    kernel="matern32",
    lengthscale=(20.0,) * 3,
    std=0.8,
    mean=ConstantMean(value=0.01),
    common_noise=0.0,
    density="lognormal",
)
STATE = FitState(generator=torch.empty(0), plan=PLAN)


@pytest.mark.parametrize(("budget", "machine"), [(0.5, 64.0), (64.0, 0.5)])
def test_a_grid_too_large_for_the_budget_or_the_machine_is_refused(
    monkeypatch, budget, machine
):
    config = FitConfig.model_validate({"budget": {"memory_gib": budget}})
    at = SimpleNamespace(config=config, group=Group())
    monkeypatch.setattr(module, "machine_memory", lambda _: machine * 2**30)
    with pytest.raises(InputError, match=r"\(390 x 390 x 190 pc\).*budget.memory_gib"):
        require_memory(STATE, np.full(9, 90.0), cast(Context, at))
