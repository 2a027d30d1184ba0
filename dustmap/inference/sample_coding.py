r"""Groups of samples that are coded together: antithetic pairs, or one at a time.

Of an antithetic pair the half sum and the half difference are coded; the former is
small, since the pair is nearly one of mirror images. Where data say nothing, a sample
whose solves went to their end is its white noise ξ. One whose solves stopped early is
``c ξ`` there, with one c for all that data do not see: conjugate gradients give a
polynomial of ``Λ``, which is the identity there. So c is found from the samples, by a
regression that what data have moved does not bend, and kept with the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.posterior_coding import Code, Error, FieldCode
from dustmap.inference.white_noise import WhiteNoise

# Of the regression for c: points that are looked at, rounds, and when it rests.
_POINTS, _ROUNDS, _STILL = 1 << 18, 100, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCode:
    """Whole numbers of a group, and c of each of its rows.

    ``errors`` are those of the fields of its samples.
    """

    code: Code
    gains: tuple[float, ...]
    errors: tuple[Error, ...] = ()


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
        self, samples: Float[Tensor, "r p"], numbers: range, tolerance: float
    ) -> GroupCode:
        """A group to a tolerance that every sample of it keeps.

        Raises
        ------
        FloatingPointError
            If numbers of this precision cannot keep it.
        """
        parts = samples - self.mean
        parts = _turned(*parts) if len(numbers) == 2 else parts
        white = self._white(numbers)
        gains = tuple(
            0.0 if white is None else robust_gain(row, white) for row in parts
        )
        known = self._known(gains, white)
        coded = self.fields.encode(
            parts - known, tolerance, samples, lambda found: self._joined(found + known)
        )
        return GroupCode(code=coded.code, gains=gains, errors=coded.errors)

    def decode(self, group: GroupCode, numbers: range) -> Float[Tensor, "r p"]:
        """The samples of a group."""
        known = self._known(group.gains, self._white(numbers))
        return self._joined(self.fields.decode(group.code) + known)

    def _joined(self, parts: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
        return (_turned(*parts) if len(parts) == 2 else parts) + self.mean

    def _known(
        self, gains: tuple[float, ...], white: Float[Tensor, " p"] | None
    ) -> Float[Tensor, "r p"]:
        """What white noise gives to the parts of a group."""
        if white is None:
            return self.mean.new_zeros(len(gains), len(self.mean))
        return torch.stack([gain * white for gain in gains])

    def _white(self, numbers: range) -> Float[Tensor, " p"] | None:
        if self.noise is None:
            return None
        xi = self.noise.draw(numbers[0], self.fields.shape)
        return (xi * math.sqrt(len(numbers))).to(self.mean)


def robust_gain(part: Float[Tensor, " p"], white: Float[Tensor, " p"]) -> float:
    """c of ``part ≈ c white``, whatever a part of the points does.

    Least squares with the weights ``1 / (1 + (r / median |r|)²)`` of a Cauchy
    distribution, anew until c rests.
    """
    stride = -(-len(white) // _POINTS)
    y = part[::stride].to(torch.float64)
    x = white[::stride].to(torch.float64)
    gain = float((x * y).sum() / (x * x).sum())
    for _ in range(_ROUNDS):
        residual = (y - gain * x).abs()
        scale = residual.median() + torch.finfo(torch.float64).tiny
        weight = 1 / (1 + (residual / scale) ** 2)
        before, gain = gain, float((weight * x * y).sum() / (weight * x * x).sum())
        if abs(gain - before) < _STILL:
            break
    return gain


def _turned(a: Tensor, b: Tensor) -> Float[Tensor, "2 p"]:
    """``(a + b) / √2`` and ``(a − b) / √2``; twice, it is the identity."""
    return torch.stack([a + b, a - b]) / math.sqrt(2)
