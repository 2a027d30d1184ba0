"""The parameters that Adam learns beside q: kernel, likelihood and mean."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.settings import SvgpSettings
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.whitening import ToeplitzWhitening, Whitening

MEAN = "mean"
KERNEL = "kernel."
LIKELIHOOD = "likelihood."


class Hyperparameters:
    """A vector for an optimiser, and the prior and likelihood that it describes.

    Positive parameters move in their logarithm, the mean in units of the prior's std.
    Meanwhile q(ε) is fixed in whitened coordinates, as is the shape of an embedding,
    chosen once for the longest lengthscale allowed. The vector is on the device of the
    whitening, where its gradient is summed.

    ``whitening``, ``likelihood`` and ``mean`` (``None`` if it cannot be learnt) are the
    start; the settings name the parameters to learn.

    Raises `ValueError` if a name is unknown.
    """

    def __init__(
        self,
        whitening: Whitening,
        likelihood: Likelihood,
        settings: SvgpSettings,
        mean: float | None = None,
    ) -> None:
        self._whitening, self._likelihood = whitening, likelihood
        self._embedded: ToeplitzWhitening | None = None
        at_zero = whitening.points.new_zeros(1, whitening.points.shape[1])
        self._unit = whitening.kernel(at_zero)[0].detach().sqrt()
        there = {KERNEL + n: v for n, v in whitening.kernel.parameters().items()}
        there |= {LIKELIHOOD + n: v for n, v in likelihood.parameters().items()}
        there |= {} if mean is None else {MEAN: torch.tensor(mean)}
        self._starts: dict[str, Tensor] = {}
        device = whitening.covariance.device
        for name in settings.learn:
            found = [n for n in there if n == name or n.startswith(f"{name}.")]
            if not found and name not in ("kernel", "likelihood"):
                raise ValueError(f"cannot learn {name}: there are {', '.join(there)}")
            for each in found:
                self._starts[each] = there[each].detach().to(device, torch.float64)
        parts = [torch.zeros(0, dtype=torch.float64, device=device)]
        is_scale = [torch.zeros(0, dtype=torch.bool, device=device)]
        for name, start in self._starts.items():
            moving = torch.zeros_like(start) if name == MEAN else start.log()
            parts.append(moving.reshape(-1))
            scales = torch.full_like(start, name.endswith("lengthscale"))
            is_scale.append(scales.bool().reshape(-1))
        self.vector: Float[Tensor, " k"] = torch.cat(parts).requires_grad_(True)
        self._first, self._is_scale = torch.cat(parts), torch.cat(is_scale)
        self._reach = math.log(settings.lengthscale_range)
        self.bounded_steps = 0

    @property
    def moves_features(self) -> bool:
        """True if ``k_n`` and ``v_n`` change while learning."""
        return any(name.startswith(KERNEL) for name in self._starts)

    def of(self, vector: Float[Tensor, " k"]) -> dict[str, Tensor]:
        """Return the hyperparameters of a vector, by name."""
        parts = vector.split([v.numel() for v in self._starts.values()])
        values = {}
        for (name, start), part in zip(self._starts.items(), parts, strict=True):
            part = part.reshape(start.shape)
            values[name] = start + self._unit * part if name == MEAN else part.exp()
        return values

    def values(self) -> dict[str, Tensor]:
        """Return the current values (no gradients)."""
        return self.of(self.vector.detach().clone())

    def likelihood(self) -> Likelihood:
        """Return the current likelihood, carrying gradients."""
        own = _own(self._likelihood, LIKELIHOOD, self.of(self.vector))
        return self._likelihood.with_parameters(own)

    def mean(self) -> Tensor | None:
        """Return the current constant mean, carrying its gradient, if it is learnt."""
        return self.of(self.vector).get(MEAN)

    def whitening(self) -> Whitening:
        """Return the current whitening, its kernel carrying gradients."""
        start, kernel = self._whitening, self._whitening.kernel
        if self.moves_features:
            own = _own(kernel, KERNEL, self.of(self.vector))
            kernel = kernel.with_parameters(own)
        if not isinstance(start, ToeplitzWhitening):
            return replace(start, kernel=kernel)
        # The embedding is made again where the kernel has changed.
        latest = self._embedded or start
        now = {n: v.detach() for n, v in kernel.parameters().items()}
        known = latest.kernel.parameters()
        if not all(torch.equal(known[n].to(value), value) for n, value in now.items()):
            latest = start.with_kernel(start.kernel.with_parameters(now))
        self._embedded = latest
        return latest.with_gradients(kernel)

    def restrict(self) -> None:
        """Bring lengthscales back into their range after a step; cuts are counted."""
        moved = self.vector.detach() - self._first
        beyond = self._is_scale & (moved.abs() > self._reach)
        if bool(beyond.any()):
            self.bounded_steps += 1
            inside = self._first + moved.clamp(-self._reach, self._reach)
            with torch.no_grad():
                self.vector.copy_(torch.where(beyond, inside, self.vector))


def _own(
    owner: Kernel | Likelihood, prefix: str, values: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return all parameters of a kernel or likelihood, learnt ones as they are now."""
    return {n: values.get(prefix + n, v) for n, v in owner.parameters().items()}


def widened(start: ToeplitzWhitening, lengthscale_range: float) -> ToeplitzWhitening:
    """Embed for lengthscales longer by this factor, with the same kernel.

    Raises `ValueError` if the whitening's limits allow no such embedding.
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
