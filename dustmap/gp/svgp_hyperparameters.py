"""What Adam learns beside q: kernel, likelihood, mean and inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.likelihoods import Likelihood
from dustmap.whitening import Whitening

MEAN, POINTS = "mean", "points"
KERNEL, LIKELIHOOD = "kernel.", "likelihood."


@runtime_checkable
class MovableWhitening(Protocol):
    """A whitening whose inducing points may be learnt."""

    def with_points(self, points: Float[Tensor, "m d"]) -> Self:
        """The same kernel at other points."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The model at hand but for q."""

    whitening: Whitening
    likelihood: Likelihood
    mean: Tensor


class Hyperparameters:
    """Leaves that an optimiser moves, and the model they stand for.

    Positive parameters move in the logarithm, the mean in units of the prior's std, and
    inducing points in units of the lengthscale (of their own std where the kernel has
    no single one).

    Raises
    ------
    ValueError
        If a name is unknown, or the whitening's points cannot be moved.
    """

    def __init__(
        self,
        whitening: Whitening,
        likelihood: Likelihood,
        mean: float,
        settings: SvgpSettings,
    ) -> None:
        self._start = State(
            whitening=whitening,
            likelihood=likelihood,
            mean=torch.tensor(mean, dtype=torch.float64),
        )
        positive = {
            **{KERNEL + n: v for n, v in whitening.kernel.parameters().items()},
            **{LIKELIHOOD + n: v for n, v in likelihood.parameters().items()},
        }
        learn = (*positive, MEAN) if settings.learn is None else settings.learn
        unknown = sorted(set(learn) - {*positive, MEAN, POINTS})
        if unknown:
            raise ValueError(
                f"cannot learn {', '.join(unknown)}: there are "
                f"{', '.join((*positive, MEAN, POINTS))}"
            )
        if POINTS in learn and not isinstance(whitening, MovableWhitening):
            raise ValueError(
                f"the points of a {type(whitening).__name__} cannot be learnt: use a "
                "whitening of free points"
            )
        self._positive = positive
        self._units = {MEAN: self._prior_std(), POINTS: self._point_unit()}
        self.leaves = {name: self._leaf(name) for name in learn}

    @property
    def moves_features(self) -> bool:
        """Whether ``k_n`` and ``v_n`` change while learning."""
        return any(n == POINTS or n.startswith(KERNEL) for n in self.leaves)

    def values(self) -> dict[str, Tensor]:
        """What is learnt, at hand (no gradients)."""
        with torch.no_grad():
            return {name: self._value(name).clone() for name in self.leaves}

    def state(self) -> State:
        """The model at hand, carrying gradients."""
        start, values = self._start, {n: self._value(n) for n in self.leaves}
        whitening = start.whitening
        if POINTS in values:
            assert isinstance(whitening, MovableWhitening)
            whitening = whitening.with_points(values[POINTS])
        if any(name.startswith(KERNEL) for name in values):
            own = whitening.kernel.parameters()
            moved = {n: values.get(KERNEL + n, v) for n, v in own.items()}
            whitening = whitening.with_kernel(whitening.kernel.with_parameters(moved))
        own = start.likelihood.parameters()
        moved = {n: values.get(LIKELIHOOD + n, v) for n, v in own.items()}
        return State(
            whitening=whitening,
            likelihood=start.likelihood.with_parameters(moved),
            mean=values.get(MEAN, start.mean),
        )

    def fixed(self) -> State:
        """The model at hand, without gradients."""
        with torch.no_grad():
            return self.state()

    def _leaf(self, name: str) -> Tensor:
        if name in self._positive:
            start = self._positive[name].detach().to(torch.float64).log()
        elif name == MEAN:
            start = torch.zeros((), dtype=torch.float64)
        else:
            start = torch.zeros_like(self._start.whitening.points)
        return start.clone().requires_grad_(True)

    def _value(self, name: str) -> Tensor:
        leaf = self.leaves[name]
        if name in self._positive:
            return leaf.exp()
        origin = self._start.mean if name == MEAN else self._start.whitening.points
        return origin + self._units[name] * leaf

    def _prior_std(self) -> Tensor:
        whitening = self._start.whitening
        at_zero = torch.zeros(1, whitening.points.shape[1], dtype=torch.float64)
        return whitening.kernel(at_zero)[0].detach().sqrt()

    def _point_unit(self) -> Tensor:
        whitening = self._start.whitening
        scale = whitening.kernel.parameters().get("lengthscale")
        return whitening.points.std(dim=0) if scale is None else scale.detach()
