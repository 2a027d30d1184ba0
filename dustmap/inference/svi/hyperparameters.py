"""What Adam learns beside q: kernel, likelihood, mean and inducing points."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dustmap.inference.svi.settings import SvgpSettings
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.whitening import (
    CholeskyWhitening,
    CiqWhitening,
    ToeplitzWhitening,
    Whitening,
)

MEAN, POINTS = "mean", "points"
KERNEL, LIKELIHOOD = "kernel.", "likelihood."


class Hyperparameters:
    """Leaves that an optimiser moves, and the prior and likelihood they stand for.

    Positive parameters move in the logarithm, the mean in units of the prior's std, and
    inducing points in units of the lengthscale (of their own std where the kernel has
    no single one). q(ε) is held fixed in whitened coordinates meanwhile, and so is an
    embedding, chosen once for the longest lengthscale allowed. Leaves are on the device
    of the whitening: the gradient by a parameter is summed there.

    Parameters
    ----------
    whitening, likelihood
        Where learning starts.
    settings
        What is learnt.
    mean
        The constant mean; ``None`` if there is none to learn.

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
        mean: float | None = None,
    ) -> None:
        self._whitening = self._embedded = whitening
        self._likelihood = likelihood
        device = whitening.covariance.device
        self._positive = {
            **{KERNEL + n: v for n, v in whitening.kernel.parameters().items()},
            **{LIKELIHOOD + n: v for n, v in likelihood.parameters().items()},
        }
        # Origin and unit of what may have either sign.
        self._moving: dict[str, tuple[Tensor, Tensor]] = {}
        if mean is not None:
            start = torch.tensor(mean, dtype=torch.float64, device=device)
            self._moving[MEAN] = start, _prior_std(whitening)
        if isinstance(whitening, CholeskyWhitening | CiqWhitening):
            self._moving[POINTS] = whitening.points, _point_unit(whitening)
        self.leaves = {
            name: self._leaf(name).to(device).requires_grad_(True)
            for name in self._chosen(settings)
        }
        self._centre = {n: v.detach().clone() for n, v in self.leaves.items()}
        self._reach = math.log(settings.lengthscale_range)
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
        own = self._at_hand(self._likelihood, LIKELIHOOD)
        return self._likelihood.with_parameters(own)

    def mean(self) -> Tensor | None:
        """The constant mean at hand, carrying its gradient, if it is learnt."""
        return self._value(MEAN) if MEAN in self.leaves else None

    def prior(self) -> tuple[Whitening, Kernel]:
        """The whitening and its kernel at hand.

        The kernel carries gradients, and so does the whitening of free points; one on
        an embedding has the same values without, for the solves.
        """
        whitening, kernel = self._whitening, self._whitening.kernel
        if POINTS in self.leaves:
            assert isinstance(whitening, CholeskyWhitening | CiqWhitening)
            whitening = whitening.with_points(self._value(POINTS))
        if any(name.startswith(KERNEL) for name in self.leaves):
            kernel = kernel.with_parameters(self._at_hand(kernel, KERNEL))
            if isinstance(whitening, ToeplitzWhitening):
                whitening = self._embedding(whitening)
            else:
                whitening = whitening.with_kernel(kernel)
        return whitening, kernel

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

    def _embedding(self, start: ToeplitzWhitening) -> Whitening:
        """The embedding at hand, made anew where the kernel has moved."""
        with torch.no_grad():
            own = self._at_hand(start.kernel, KERNEL)
        known = self._embedded.kernel.parameters()
        if not all(torch.equal(known[n].to(value), value) for n, value in own.items()):
            self._embedded = start.with_kernel(start.kernel.with_parameters(own))
        return self._embedded

    def _chosen(self, settings: SvgpSettings) -> tuple[str, ...]:
        """The names to learn, groups written out."""
        there = (*self._positive, *self._moving)
        chosen: dict[str, None] = {}
        for asked in settings.learn:
            found = [n for n in there if n == asked or n.startswith(f"{asked}.")]
            if not found and asked not in ("kernel", "likelihood"):
                raise ValueError(f"cannot learn {asked}: there are {', '.join(there)}")
            chosen |= dict.fromkeys(found)
        return tuple(chosen)

    def _leaf(self, name: str) -> Tensor:
        if name in self._positive:
            return self._positive[name].detach().to(torch.float64).log().clone()
        return torch.zeros_like(self._moving[name][0])

    def _value(self, name: str) -> Tensor:
        leaf = self.leaves[name]
        if name in self._positive:
            return leaf.exp()
        origin, unit = self._moving[name]
        return origin + unit * leaf

    def _at_hand(self, owner: Kernel | Likelihood, prefix: str) -> dict[str, Tensor]:
        """All parameters of a kernel or likelihood, those learnt as they stand."""
        return {
            name: self._value(prefix + name) if prefix + name in self.leaves else value
            for name, value in owner.parameters().items()
        }


def _prior_std(whitening: Whitening) -> Tensor:
    at_zero = whitening.points.new_zeros(1, whitening.points.shape[1])
    return whitening.kernel(at_zero)[0].detach().sqrt()


def _point_unit(whitening: Whitening) -> Tensor:
    scale = whitening.kernel.parameters().get("lengthscale")
    if scale is None:
        return whitening.points.std(dim=0)
    return scale.detach().to(whitening.points)


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
