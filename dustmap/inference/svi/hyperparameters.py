"""What Adam learns beside q: kernel, likelihood, mean and inducing points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.settings import SvgpSettings
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.whitening import ToeplitzWhitening, Whitening

MEAN, POINTS = "mean", "points"
KERNEL, LIKELIHOOD = "kernel.", "likelihood."


@runtime_checkable
class MovableWhitening(Protocol):
    """A whitening whose inducing points may be learnt."""

    def with_points(self, points: Float[Tensor, "m d"]) -> Self:
        """The same kernel at other points."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerativeModel:
    """Prior and likelihood under some hyperparameters.

    ``kernel`` carries their gradients, and so does the whitening of free points; one on
    an embedding has the same values without, for the solves.
    """

    whitening: Whitening
    kernel: Kernel
    likelihood: Likelihood
    mean: Tensor


class Hyperparameters:
    """Leaves that an optimiser moves, and the model they stand for.

    Positive parameters move in the logarithm, the mean in units of the prior's std, and
    inducing points in units of the lengthscale (of their own std where the kernel has
    no single one). q(ε) is held fixed in whitened coordinates meanwhile, and so is an
    embedding, chosen once for the longest lengthscale allowed. Leaves are on the device
    of the whitening: the gradient by a parameter is summed there.

    Raises
    ------
    ValueError
        If a name is unknown, or the whitening's points cannot be moved.
    """

    def __init__(
        self,
        whitening: Whitening,
        likelihood: Likelihood,
        settings: SvgpSettings,
        mean: float = 0.0,
    ) -> None:
        self._device = whitening.covariance.device
        self._start = GenerativeModel(
            whitening=whitening,
            kernel=whitening.kernel,
            likelihood=likelihood,
            mean=torch.tensor(mean, dtype=torch.float64, device=self._device),
        )
        self._positive = {
            **{KERNEL + n: v for n, v in whitening.kernel.parameters().items()},
            **{LIKELIHOOD + n: v for n, v in likelihood.parameters().items()},
        }
        self._units = {MEAN: self._prior_std(), POINTS: self._point_unit()}
        self.leaves = {name: self._leaf(name) for name in self._chosen(settings)}
        self._centre = {n: v.detach().clone() for n, v in self.leaves.items()}
        self._reach = math.log(settings.lengthscale_range)
        self._embedded = whitening
        self.bounded_steps = 0

    @property
    def moves_features(self) -> bool:
        """Whether ``k_n`` and ``v_n`` change while learning."""
        return any(n == POINTS or n.startswith(KERNEL) for n in self.leaves)

    def values(self) -> dict[str, Tensor]:
        """What is learnt, at hand (no gradients)."""
        with torch.no_grad():
            return {name: self._value(name).clone() for name in self.leaves}

    def likelihood(self) -> Likelihood:
        """The likelihood at hand, carrying gradients."""
        values = {n: self._value(n) for n in self.leaves if n.startswith(LIKELIHOOD)}
        start = self._start.likelihood
        return start.with_parameters(_moved(start, LIKELIHOOD, values))

    def mean(self) -> Tensor:
        """The constant mean at hand, carrying its gradient."""
        return self._value(MEAN) if MEAN in self.leaves else self._start.mean

    def model(self) -> GenerativeModel:
        """The model at hand, carrying gradients."""
        start, values = self._start, {n: self._value(n) for n in self.leaves}
        whitening, kernel = start.whitening, start.kernel
        if POINTS in values:
            assert isinstance(whitening, MovableWhitening)
            whitening = whitening.with_points(values[POINTS])
        if any(name.startswith(KERNEL) for name in values):
            kernel = kernel.with_parameters(_moved(kernel, KERNEL, values))
            if isinstance(whitening, ToeplitzWhitening):
                whitening = self._embedding(whitening)
            else:
                whitening = whitening.with_kernel(kernel)
        return GenerativeModel(
            whitening=whitening,
            kernel=kernel,
            likelihood=self.likelihood(),
            mean=self.mean(),
        )

    def fixed(self) -> GenerativeModel:
        """The model at hand, without gradients."""
        with torch.no_grad():
            return self.model()

    def restrict(self) -> None:
        """Bring lengthscales back into their range after a step; cuts are counted."""
        if math.isinf(self._reach):
            return
        cut = False
        with torch.no_grad():
            for name, value in self.leaves.items():
                if not name.endswith("lengthscale"):
                    continue
                moved = value - self._centre[name]
                cut = cut or bool((moved.abs() > self._reach).any())
                value.copy_(self._centre[name] + moved.clamp(-self._reach, self._reach))
        self.bounded_steps += cut

    def _embedding(self, start: ToeplitzWhitening) -> ToeplitzWhitening:
        """The embedding at hand, made anew where the kernel has moved."""
        own = _moved(start.kernel, KERNEL, self.values())
        known = self._embedded.kernel.parameters()
        if not all(torch.equal(known[n].to(value), value) for n, value in own.items()):
            self._embedded = start.with_kernel(start.kernel.with_parameters(own))
        assert isinstance(self._embedded, ToeplitzWhitening)
        return self._embedded

    def _chosen(self, settings: SvgpSettings) -> tuple[str, ...]:
        """The names to learn, groups written out."""
        there = (*self._positive, MEAN, POINTS)
        chosen: dict[str, None] = {}
        for asked in settings.learn:
            found = [n for n in there if n == asked or n.startswith(f"{asked}.")]
            if not found and asked not in ("kernel", "likelihood"):
                raise ValueError(f"cannot learn {asked}: there are {', '.join(there)}")
            chosen |= dict.fromkeys(found)
        whitening = self._start.whitening
        if POINTS in chosen and not isinstance(whitening, MovableWhitening):
            raise ValueError(
                f"the points of a {type(whitening).__name__} cannot be learnt: use a "
                "whitening of free points"
            )
        return tuple(chosen)

    def _leaf(self, name: str) -> Tensor:
        if name in self._positive:
            start = self._positive[name].detach().to(self._start.mean).log()
        elif name == MEAN:
            start = torch.zeros_like(self._start.mean)
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
        at_zero = whitening.points.new_zeros(1, whitening.points.shape[1])
        return whitening.kernel(at_zero)[0].detach().sqrt()

    def _point_unit(self) -> Tensor:
        whitening = self._start.whitening
        scale = whitening.kernel.parameters().get("lengthscale")
        if scale is None:
            return whitening.points.std(dim=0)
        return scale.detach().to(self._device)


def _moved(
    owner: Kernel | Likelihood, prefix: str, values: dict[str, Tensor]
) -> dict[str, Tensor]:
    """All parameters of a kernel or likelihood, those that are learnt as they stand."""
    return {n: values.get(prefix + n, v) for n, v in owner.parameters().items()}


def widened(start: ToeplitzWhitening, lengthscale_range: float) -> ToeplitzWhitening:
    """An embedding that holds for lengthscales longer by this factor, at the kernel.

    Raises
    ------
    ValueError
        If no embedding within the whitening's limits does.
    """
    kernel = start.kernel
    longest = {
        name: value * (lengthscale_range if name.endswith("lengthscale") else 1.0)
        for name, value in kernel.parameters().items()
    }
    widest = ToeplitzWhitening(
        kernel.with_parameters(longest),
        start.grid,
        lengthscales=[s * lengthscale_range for s in start.lengthscales],
        nugget=start.nugget,
        limits=start.limits,
        solver=start.solver,
        device=start.device,
    )
    return widest.with_kernel(kernel)
