"""A point in the space of hyperparameters, and the directions one can move in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.models.base import ForwardModel

COMMON_NOISE = "common_noise"
LENGTHSCALE = "lengthscale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One logarithm that is learnt: of a whole parameter, or of one entry of it.

    A whole lengthscale per axis moves by one factor (isotropic).
    """

    name: str
    entry: int | None = None

    @property
    def label(self) -> str:
        """``lengthscale`` or ``lengthscale[0]``."""
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"

    @property
    def is_lengthscale(self) -> bool:
        """Also of a term of a sum of kernels."""
        return self.name.split(".")[-1] == LENGTHSCALE

    def of(self, gradient: dict[str, Tensor]) -> float:
        """The derivative along this direction from one by logarithms, entry-wise."""
        values = gradient[self.name]
        if self.entry is None:
            return float(values.sum())
        return float(values.reshape(-1)[self.entry])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperpoint:
    """A model, and the common noise ``τ²`` that its likelihood adds to every star."""

    model: ForwardModel
    common_noise: float

    def __post_init__(self) -> None:
        if not 0 <= self.common_noise < math.inf:
            raise ValueError(
                "common_noise is a variance, not negative and finite: got "
                f"{self.common_noise}"
            )

    def values(self) -> dict[str, Tensor]:
        """All hyperparameters by name."""
        noise = torch.tensor(self.common_noise, dtype=torch.float64)
        return {**self.model.parameters(), COMMON_NOISE: noise}

    def noise(self, sigma2: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """``σ_n² + τ²`` (float64)."""
        return sigma2.to(torch.float64) + self.common_noise

    def moved(
        self, directions: Sequence[Direction], steps: Sequence[float]
    ) -> Hyperpoint:
        """The point with logarithms changed by ``steps``; what stays is not rebuilt."""
        noise, own = self.common_noise, self.model.parameters()
        changed: dict[str, Tensor] = {}
        for direction, step in zip(directions, steps, strict=True):
            if step == 0.0:
                continue
            if direction.name == COMMON_NOISE:
                noise *= math.exp(step)
                continue
            value = changed.get(direction.name, own[direction.name]).clone()
            flat = value.view(-1)
            chosen = slice(None) if direction.entry is None else direction.entry
            flat[chosen] = flat[chosen] * math.exp(step)
            changed[direction.name] = value
        model = self.model.with_parameters(changed) if changed else self.model
        return Hyperpoint(model=model, common_noise=noise)


def directions_of(
    point: Hyperpoint, names: Sequence[str], *, anisotropic: bool
) -> tuple[Direction, ...]:
    """The directions for these names: of lengthscales one, or one per axis.

    Raises
    ------
    ValueError
        If a name is unknown, or the logarithm of its value does not exist.
    """
    values = point.values()
    unknown = sorted(set(names) - set(values))
    if unknown:
        raise ValueError(
            f"cannot learn {', '.join(unknown)}: there are {', '.join(values)}"
        )
    directions = []
    for name in names:
        if not bool((values[name] > 0).all()):
            raise ValueError(
                f"{name} is learnt in the logarithm and must start above zero, got "
                f"{values[name].tolist()}"
            )
        whole = Direction(name=name)
        if anisotropic and whole.is_lengthscale and values[name].numel() > 1:
            count = values[name].numel()
            directions += [Direction(name=name, entry=i) for i in range(count)]
        else:
            directions.append(whole)
    return tuple(directions)


def reach(
    start: Hyperpoint,
    directions: Sequence[Direction],
    lengthscale_range: tuple[float, float] | None,
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """How far every logarithm may move from the start, down and up.

    Raises
    ------
    ValueError
        If a lengthscale starts outside its range.
    """
    lower = torch.full((len(directions),), -torch.inf, dtype=torch.float64)
    upper = torch.full((len(directions),), torch.inf, dtype=torch.float64)
    if lengthscale_range is None:
        return lower, upper
    shortest, longest = lengthscale_range
    values = start.values()
    for i, direction in enumerate(directions):
        if not direction.is_lengthscale:
            continue
        scales = values[direction.name].reshape(-1)
        scales = scales if direction.entry is None else scales[direction.entry][None]
        lower[i] = math.log(shortest / float(scales.min()))
        upper[i] = math.log(longest / float(scales.max()))
        if not (lower[i] <= 0 <= upper[i]):
            raise ValueError(
                f"{direction.label} starts at {scales.tolist()}, outside its range "
                f"{shortest} to {longest}: widen lengthscale_range or start elsewhere"
            )
    return lower, upper
