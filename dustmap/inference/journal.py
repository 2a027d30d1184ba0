"""How parts of an inference are saved, so that it can be taken up again.

A function that says what is saved goes with a pattern that says what must be there, and
one that makes the part anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dustmap.inference.noise import Weighing
from dustmap.journal import Frame, Journal, Kind, Pattern, State
from dustmap.linalg.cg import Solution

__all__ = ["Frame", "Journal", "State"]


def generator_kind(generator: torch.Generator) -> Kind:
    """The kind of a generator's state."""
    state = generator.get_state()
    return state.dtype, tuple(state.shape)


def saved_solution(solution: Solution) -> State:
    """A solution of b columns of n numbers."""
    return {
        "value": solution.value,
        "residual": solution.residual,
        "iterations": solution.iterations,
        "solved": solution.converged,
    }


def solution_pattern(count: int | None, size: int, dtype: torch.dtype) -> Pattern:
    """What :func:`saved_solution` saves of so many columns (``None``: of any)."""
    return {
        "value": (dtype, (count, size)),
        "residual": (torch.float64, (count,)),
        "iterations": (torch.int64, (count,)),
        "solved": (torch.bool, (count,)),
    }


def solution_of(known: dict[str, Any], device: torch.device) -> Solution:
    """The solution that was saved."""
    return Solution(
        value=known["value"].to(device),
        residual=known["residual"].to(device),
        iterations=known["iterations"].to(device),
        converged=known["solved"].to(device),
    )


def saved_weighing(weighing: Weighing) -> State:
    """What reweighing has found; Σ itself is no function of this alone."""
    aside = weighing.aside
    none = torch.zeros_like(weighing.weights, dtype=torch.bool)
    return {
        "weights": weighing.weights,
        "common": float(weighing.common),
        # Zero stands for a normal distribution.
        "degrees": 0.0 if weighing.degrees is None else float(weighing.degrees),
        "aside": none if aside is None else aside,
    }


def weighing_pattern(weighing: Weighing) -> Pattern:
    """What :func:`saved_weighing` saves."""
    weights = weighing.weights
    return {
        "weights": (weights.dtype, tuple(weights.shape)),
        "common": float,
        "degrees": float,
        "aside": (torch.bool, tuple(weights.shape)),
    }


def take_up_weighing(weighing: Weighing, known: dict[str, Any]) -> None:
    """Bring a weighing to where it was."""
    device = weighing.weights.device
    weighing.weights = known["weights"].to(device)
    weighing.common = known["common"]
    weighing.degrees = known["degrees"] or None
    aside: Tensor = known["aside"].to(device)
    weighing.aside = aside if bool(aside.any()) else None


def part(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """The entries ``name.…`` of what was saved, empty if there are none."""
    start = f"{name}."
    return {k.removeprefix(start): v for k, v in known.items() if k.startswith(start)}


def as_part(name: str, state: State) -> State:
    """A state as a part of another."""
    return {f"{name}.{key}": value for key, value in state.items()}
