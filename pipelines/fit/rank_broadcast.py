"""What one rank of a fit finds out alone, and tells the others."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError, Stopped
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

    def text() -> str:
        try:
            entries = make().entries()
        except (InputError, Stopped) as reason:
            return json.dumps({type(reason).__name__: str(reason)})
        return json.dumps({**entries, "generator": entries["generator"].tolist()})

    told = json.loads(group.from_first(text))
    for name, kind in _PASSED_ON.items():
        if name in told:
            raise kind(told[name])
    told["generator"] = torch.tensor(told["generator"], dtype=torch.uint8)
    generator.set_state(told["generator"])
    return FitState.from_entries(told, torch.device("cpu"))
