"""The progress that a long computation saves between steps and resumes from.

Progress is a frozen dataclass of tensors, plain values and other such dataclasses. It
holds only values that cannot be recomputed with the same bits. Its reader checks types
and numbers of dims; the computation then compares shapes with its own (`restored`), as
the file may belong to another problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

P = TypeVar("P")
T = TypeVar("T")


class Checkpointer(Protocol[P]):
    """Storage for the progress of a computation."""

    def save(self, progress: P) -> None:
        """Take the progress after a step, to be written now, later or never.

        The computation does not change its tensors. An exception here ends the
        computation, which can be resumed from this progress.
        """

    def restore(self) -> P | None:
        """Return the progress to resume from, once; ``None`` for a fresh start."""


def restored(saved: T, own: Mapping[str, Tensor], name: str = "state") -> T:
    """Return saved progress on the device of the computation that takes it up.

    Parameters
    ----------
    own
        Tensors of the computation by names of the fields that hold their like, or
        several as the rows of a matrix. States of generators remain on the CPU.
    name
        The value, in errors.

    Raises
    ------
    ValueError
        If a tensor has another dtype or shape than its like.
    """
    if isinstance(saved, tuple):
        return cast("T", tuple(restored(each, own, name) for each in saved))
    if is_dataclass(saved) and not isinstance(saved, type):
        names = [field.name for field in fields(saved)]
        parts = {n: restored(getattr(saved, n), own, f"{name}.{n}") for n in names}
        return cast("T", replace(saved, **parts))
    last = name.split(".")[-1]
    if not isinstance(saved, Tensor) or last == "generator":
        return saved
    if (like := own.get(last)) is not None:
        shape = saved.shape[1:] if saved.dim() > like.dim() else saved.shape
        if (saved.dtype, shape) != (like.dtype, like.shape):
            kinds = [f"{x.dtype} of shape {tuple(x.shape)}" for x in (like, saved)]
            raise misfit(name, *kinds)
    return cast("T", saved.to(next(iter(own.values())).device))


def misfit(name: str, expected: object, found: object) -> ValueError:
    """Return the error of saved progress that belongs to another computation."""
    return ValueError(
        f"the saved state does not fit: {name} should be {expected}, found {found}. It "
        "was saved by another problem, other settings or another version: restore it "
        "with those, or start afresh"
    )


def require_finite(where: str, **values: Tensor | float) -> None:
    """Raise before values that are not finite reach a result or a checkpoint.

    Raises `FloatingPointError` if a value is not finite; the message names it and the
    place.
    """
    for name, value in values.items():
        numbers = torch.as_tensor(value)
        count = int((~torch.isfinite(numbers)).sum())
        if count:
            raise FloatingPointError(
                f"{where}: {name.replace('_', ' ')} is not finite ({count} of "
                f"{numbers.numel()} numbers), the fit ends here. Look for extreme "
                "observations, variances or starting values; use float64, or a larger "
                "noise. Earlier checkpoints are not affected"
            )
