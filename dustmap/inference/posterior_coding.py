r"""Posterior samples as white noise from a seed, and whole numbers for what data added.

A sample is ``ε = c ξ + m + δ`` with white noise ξ that a seed draws again. The field
``u = C^{1/2} δ`` of what the data added is smooth where they say little and small where
they say nothing: its wavelet coefficients are rounded to multiples of one step, nearly
all of them to zero.

Back from u, ``δ = C^{1/2} (C + n²)⁻¹ u`` with ``n²`` the variance of rounding: modes of
which a smooth prior has less than that stay those of the white noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.circulant import Circulant
from dustmap.linalg.wavelets import analyse, bands, synthesise

# A worst error of so many times the tolerance is allowed: a normal one of 26 million
# points is six times its own standard deviation.
WORST = 10.0
# Coefficients below this many steps are zero: rounding at one half costs more bits than
# the error it saves.
_DEAD = 0.6
_BISECTIONS, _TRIES, _SHRINK = 10, 8, 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Of a decoded field: root of the mean square and largest, in the prior's std."""

    rms: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Rounded wavelet coefficients of one or two fields, coarse to fine, one step."""

    numbers: Int[Tensor, "r p"]
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """Whole numbers, and how far the field of each decoded ε is off."""

    code: Code
    errors: tuple[Error, ...]


class FieldCode:
    """From ε to whole numbers and back, for fields of one prior.

    Parameters
    ----------
    root
        ``C^{1/2}`` on the torus where ε lives.
    """

    def __init__(self, root: Circulant) -> None:
        self.root = root
        self.shape = root.grid_shape
        self.size = root.shape[0]
        counts = root.full_counts().to(root.device)
        variance = (counts * root.spectrum.to(torch.float64) ** 2).sum() / self.size
        self.std = math.sqrt(float(variance))
        self._bands = bands(self.shape)

    def field(self, eps: Float[Tensor, "*b p"]) -> Float[Tensor, "*b p"]:
        """``u = C^{1/2} ε``."""
        return self.root.matvec(eps)

    def error(self, found: Float[Tensor, " p"], eps: Float[Tensor, " p"]) -> Error:
        """How far the field of a decoded ε is from what it was."""
        off = self.field(found.to(torch.float64) - eps.to(torch.float64)) / self.std
        rms = math.sqrt(float((off**2).mean()))
        return Error(rms=rms, worst=float(off.abs().max()))

    def encode(
        self,
        parts: Float[Tensor, "r p"],
        tolerance: float,
        wanted: Float[Tensor, "s p"],
        joined: Callable[[Tensor], Float[Tensor, "s p"]],
    ) -> Coded:
        """Whole numbers of a few corrections, of the largest step that is fine enough.

        Parameters
        ----------
        parts
            The corrections δ.
        tolerance
            Rms in the prior's std that the field of each decoded ε keeps; the worst
            point may be off by ten times that.
        wanted, joined
            The ε that are wanted, and what makes them from decoded corrections.

        Raises
        ------
        FloatingPointError
            If numbers of this precision cannot keep the tolerance.
        """
        coefficients = self._coefficients(parts)
        step = self._step_for(coefficients, tolerance)
        for _ in range(_TRIES):
            code = Code(numbers=_rounded(coefficients, step), step=step)
            found = joined(self.decode(code))
            errors = tuple(
                self.error(*both) for both in zip(found, wanted, strict=True)
            )
            excess = max(max(e.rms, e.worst / WORST) for e in errors) / tolerance
            if excess <= 1:
                return Coded(code=code, errors=errors)
            step *= _SHRINK / excess
        raise FloatingPointError(
            f"a tolerance of {tolerance:g} cannot be kept: decoded fields are off by "
            f"{excess * tolerance:.2g} of the prior's standard deviation, whatever the "
            "step; loosen it"
        )

    def _coefficients(self, parts: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
        """Wavelet coefficients of the fields of a few corrections, coarse to fine."""
        fields = self.field(parts).reshape(-1, *self.shape)
        return torch.stack([self._ordered(analyse(field)) for field in fields])

    def _step_for(self, coefficients: Float[Tensor, "r p"], tolerance: float) -> float:
        """The step whose rounding has this rms, of all rows together."""
        aim = tolerance * self.std
        low, high = aim, 64 * aim
        for _ in range(_BISECTIONS):
            step = math.sqrt(low * high)
            left = coefficients - _rounded(coefficients, step) * step
            rms = math.sqrt(float((left**2).mean(dtype=torch.float64)))
            low, high = (step, high) if rms < aim else (low, step)
        return low

    def decode(self, code: Code) -> Float[Tensor, "r p"]:
        """The corrections δ of whole numbers, up to rounding."""
        return torch.stack([self._back(row, code.step) for row in code.numbers])

    def _back(self, numbers: Int[Tensor, " p"], step: float) -> Float[Tensor, " p"]:
        place = {"dtype": self.root.dtype, "device": self.root.device}
        field = synthesise(self._placed(numbers.to(**place) * step))
        dims = tuple(range(len(self.shape)))
        modes = torch.fft.rfftn(field, dim=dims)
        spectrum = self.root.spectrum
        modes *= spectrum / (spectrum**2 + step**2 / 12)
        return torch.fft.irfftn(modes, s=self.shape, dim=dims).reshape(-1)

    def _ordered(self, transformed: Tensor) -> Tensor:
        return torch.cat([transformed[band].reshape(-1) for band in self._bands])

    def _placed(self, ordered: Tensor) -> Tensor:
        out = ordered.new_empty(self.shape)
        start = 0
        for band in self._bands:
            view = out[band]
            view.copy_(ordered[start : start + view.numel()].view(view.shape))
            start += view.numel()
        return out


def _rounded(values: Tensor, step: float) -> Int[Tensor, "*n"]:
    scaled = values / step
    near = torch.where(scaled.abs() < _DEAD, 0.0, scaled.round())
    return near.to(torch.int32)
