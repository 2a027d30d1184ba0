"""What Adam learns beside q: kernel, likelihood, mean and inducing points."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
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
    """A vector that an optimiser moves, and the prior and likelihood it stands for.

    Positive parameters move in the logarithm, the mean in units of the prior's std, and
    inducing points in units of the lengthscale (of their own std where the kernel has
    no single one). q(ε) is held fixed in whitened coordinates meanwhile, and so is an
    embedding, chosen once for the longest lengthscale allowed. The vector is on the
    device of the whitening: its gradient is summed there.

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
        self._whitening = whitening
        self._embedded: ToeplitzWhitening | None = None
        self._likelihood = likelihood
        self._device = whitening.covariance.device
        starts = {KERNEL + n: v for n, v in whitening.kernel.parameters().items()}
        starts |= {LIKELIHOOD + n: v for n, v in likelihood.parameters().items()}
        # Units of what may have either sign; all else is positive.
        self._units: dict[str, Tensor] = {}
        if mean is not None:
            starts[MEAN] = torch.tensor(mean)
            self._units[MEAN] = _prior_std(whitening)
        if isinstance(whitening, CholeskyWhitening | CiqWhitening):
            starts[POINTS] = whitening.points
            self._units[POINTS] = _point_unit(whitening)
        starts = {
            n: v.detach().to(self._device, torch.float64) for n, v in starts.items()
        }
        self._starts = {name: starts[name] for name in _chosen(settings.learn, starts)}
        parts = [torch.zeros(0, dtype=torch.float64, device=self._device)]
        for name, start in self._starts.items():
            moving = torch.zeros_like(start) if name in self._units else start.log()
            parts.append(moving.reshape(-1))
        self.vector: Float[Tensor, " k"] = torch.cat(parts).requires_grad_(True)
        self._first = self.vector.detach().clone()
        self._reach = math.log(settings.lengthscale_range)
        self.bounded_steps = 0

    @property
    def moves_features(self) -> bool:
        """Whether ``k_n`` and ``v_n`` change while learning."""
        return any(n == POINTS or n.startswith(KERNEL) for n in self._starts)

    def of(self, vector: Float[Tensor, "*t k"]) -> dict[str, Tensor]:
        """The hyperparameters of a vector, or of several, by name."""
        parts = vector.split([v.numel() for v in self._starts.values()], dim=-1)
        values = {}
        for (name, start), part in zip(self._starts.items(), parts, strict=True):
            part = part.reshape((*vector.shape[:-1], *start.shape))
            unit = self._units.get(name)
            values[name] = part.exp() if unit is None else start + unit * part
        return values

    def values(self) -> dict[str, Tensor]:
        """What is learnt, at hand (no gradients)."""
        return self.of(self.vector.detach().clone())

    def likelihood(self) -> Likelihood:
        """The likelihood at hand, carrying gradients."""
        own = _own(self._likelihood, LIKELIHOOD, self.of(self.vector))
        return self._likelihood.with_parameters(own)

    def mean(self) -> Tensor | None:
        """The constant mean at hand, carrying its gradient, if it is learnt."""
        return self.of(self.vector).get(MEAN)

    def whitening(self) -> Whitening:
        """The whitening at hand, its kernel and points carrying gradients."""
        values = self.of(self.vector)
        whitening, kernel = self._whitening, self._whitening.kernel
        if any(name.startswith(KERNEL) for name in values):
            kernel = kernel.with_parameters(_own(kernel, KERNEL, values))
        if isinstance(whitening, ToeplitzWhitening):
            return self._embedding(whitening).with_gradients(kernel)
        points = values.get(POINTS, whitening.at)
        return replace(whitening, kernel=kernel, at=points)

    def restrict(self) -> None:
        """Bring lengthscales back into their range after a step; cuts are counted."""
        moved = self.vector.detach() - self._first
        scales = torch.cat(
            [
                torch.full((v.numel(),), name.endswith("lengthscale"))
                for name, v in self._starts.items()
            ]
        ).to(self._device)
        beyond = scales & (moved.abs() > self._reach)
        if bool(beyond.any()):
            self.bounded_steps += 1
            inside = self._first + moved.clamp(-self._reach, self._reach)
            with torch.no_grad():
                self.vector.copy_(torch.where(beyond, inside, self.vector))

    def _embedding(self, start: ToeplitzWhitening) -> ToeplitzWhitening:
        """The current embedding, recomputed if the kernel has changed."""
        own = _own(start.kernel, KERNEL, self.values())
        latest = self._embedded or start
        known = latest.kernel.parameters()
        if not all(torch.equal(known[n].to(value), value) for n, value in own.items()):
            latest = start.with_kernel(start.kernel.with_parameters(own))
        self._embedded = latest
        return latest


def _chosen(learn: tuple[str, ...], there: dict[str, Tensor]) -> dict[str, None]:
    """The names to learn, groups written out."""
    chosen: dict[str, None] = {}
    for asked in learn:
        found = [n for n in there if n == asked or n.startswith(f"{asked}.")]
        if not found and asked not in ("kernel", "likelihood"):
            raise ValueError(f"cannot learn {asked}: there are {', '.join(there)}")
        chosen |= dict.fromkeys(found)
    return chosen


def _own(
    owner: Kernel | Likelihood, prefix: str, values: dict[str, Tensor]
) -> dict[str, Tensor]:
    """All parameters of a kernel or likelihood, those that are learnt as they stand."""
    return {n: values.get(prefix + n, v) for n, v in owner.parameters().items()}


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
    widest = replace(
        start,
        kernel=kernel.with_parameters(longest),
        lengthscales=[s * lengthscale_range for s in start.lengthscales],
        shape=None,
    )
    return widest.with_kernel(kernel)
