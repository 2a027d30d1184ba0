"""What is saved of an inference on a grid in slabs: whole vectors, for any ranks."""

from __future__ import annotations

from torch import Tensor

from dustmap.checkpoint import State
from dustmap.distributed.slabs import Slabs

_MARK = "slabs:"


def gathered(state: State, slabs: Slabs) -> State:
    """The states of all ranks as one: on rank 0 vectors in slabs are whole.

    Those are the tensors whose last dim is the rank's slab on every rank; they are
    marked by their names. On other ranks nothing is left of them.
    """
    found: State = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and _in_slabs(value, slabs):
            found[f"{_MARK}{name}"] = slabs.to_first(value)
        else:
            found[name] = value
    return found


def cut(state: State, slabs: Slabs) -> State:
    """This rank's part of a state that was gathered, by as many ranks or others.

    Raises
    ------
    ValueError
        If a marked vector is not one of the grid.
    """
    found: State = {}
    for name, value in state.items():
        if not name.startswith(_MARK):
            found[name] = value
            continue
        points = slabs.shape[0] * slabs.plane_size
        if not isinstance(value, Tensor) or value.shape[-1:] != (points,):
            raise ValueError(
                f"the saved state does not fit: {name} is no vector of a grid of "
                f"{points} points. It was saved by another problem: restore it with "
                "that, or start afresh"
            )
        found[name.removeprefix(_MARK)] = slabs.own(value).clone()
    return found


def _in_slabs(value: Tensor, slabs: Slabs) -> bool:
    here = value.is_floating_point() and value.shape[-1:] == (slabs.size,)
    return all(slabs.group.numbers(int(here)))
