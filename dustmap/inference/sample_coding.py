"""Groups of samples that are coded together: antithetic pairs, or one at a time."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.posterior_coding import Code, Coded, FieldCode
from dustmap.inference.white_noise import WhiteNoise


class SampleCode:
    """Samples by white noise, a mean that is decoded already, and whole numbers.

    Parameters
    ----------
    fields
        The code of their fields.
    noise
        What draws their white noise again; ``None`` if that is not known: samples are
        then coded as a whole, in more numbers.
    mean
        The mean as it is decoded.
    """

    def __init__(
        self, fields: FieldCode, noise: WhiteNoise | None, mean: Float[Tensor, " p"]
    ) -> None:
        self.fields = fields
        self.noise = noise
        self.mean = mean

    def groups(self, count: int) -> list[range]:
        """Numbers of the samples that belong together."""
        size = 2 if self.noise is not None and self.noise.sampler == "pairs" else 1
        return [range(i, min(i + size, count)) for i in range(0, count, size)]

    def encode(
        self, samples: Float[Tensor, "r p"], numbers: range, tol: float
    ) -> Coded:
        """A group to a tolerance that every sample of it keeps.

        Raises
        ------
        FloatingPointError
            If numbers of this precision cannot keep it.
        """
        white = self._white(numbers)
        parts = samples - self.mean
        parts = (_turned(*parts) if len(numbers) == 2 else parts) - white
        return self.fields.encode(
            parts, tol, samples, lambda found: self._joined(found, white)
        )

    def decode(self, code: Code, numbers: range) -> Float[Tensor, "r p"]:
        """The samples of a group."""
        return self._joined(self.fields.decode(code), self._white(numbers))

    def _joined(self, found: Tensor, white: Tensor) -> Tensor:
        parts = found + white
        return (_turned(*parts) if len(parts) == 2 else parts) + self.mean

    def _white(self, numbers: range) -> Float[Tensor, "r p"]:
        """What white noise gives to the parts of a group."""
        parts = self.mean.new_zeros(len(numbers), len(self.mean))
        if self.noise is not None:
            xi = self.noise.draw(numbers[0], self.fields.shape)
            # Half sums of a pair ±ξ have none of it.
            parts[-1] = (xi * math.sqrt(len(numbers))).to(parts)
        return parts


def _turned(a: Tensor, b: Tensor) -> Float[Tensor, "2 p"]:
    """``(a + b) / √2`` and ``(a − b) / √2``; twice, it is the identity."""
    return torch.stack([a + b, a - b]) / math.sqrt(2)
