"""What one rank of a fit finds out alone, and tells the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError, Stopped
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.saving.fit_state import FitState

_PASSED_ON = {"InputError": InputError, "Stopped": Stopped}


def made_by_first(
    group: Group, generator: torch.Generator, make: Callable[[], FitState]
) -> FitState:
    """A state without inference that the first rank makes, on all ranks.

    What depends on time, as plans and the end of learning do, would otherwise differ
    between them. The others wait, and their generators end where the first one's did.

    Raises
    ------
    InputError, Stopped
        What ``make`` raises, on all ranks.
    PeerError
        On the others, if it fails otherwise.
    """
    if group.size == 1:
        return make()
    made: list[FitState] = []

    def text() -> str:
        try:
            state = make()
        except (InputError, Stopped) as reason:
            return json.dumps({type(reason).__name__: str(reason)})
        made.append(state)
        plain = {
            "stage": state.stage,
            "plan": state.plan.as_dict(),
            "speed": asdict(state.speed),
            "learning": state.learning,
        }
        return json.dumps({"state": plain, "generator": state.generator.tolist()})

    told = json.loads(group.from_first(text))
    for name, kind in _PASSED_ON.items():
        if name in told:
            raise kind(told[name])
    if made:
        return made[0]
    plain = told["state"]
    state = FitState(
        stage=plain["stage"],
        plan=Plan.from_dict(plain["plan"]),
        speed=Speed(**plain["speed"]),
        learning=plain["learning"],
        generator=torch.tensor(told["generator"], dtype=torch.uint8),
    )
    generator.set_state(state.generator)
    return state
