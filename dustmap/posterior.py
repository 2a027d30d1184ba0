"""Posterior moments and samples of any functional of the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri, stdtrit
from torch import Tensor

from dustmap.functionals import Functionals, LineIntegrals, PointValues
from dustmap.models.base import ForwardModel
from dustmap.residual.field import ResidualField
from dustmap.residual.joint_draws import draw_extinctions


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and standard deviation of functionals, in the unit of the functional.

    ``std`` includes the conditional variance that the grid cannot resolve. Its relative
    Monte Carlo error is about ``1 / sqrt(2 S)`` with S independent samples and up to
    ``1 / sqrt(S)`` with antithetic pairs. ``log_mean`` and ``log_std`` are the moments
    of the logarithm of a positive density, ``degrees`` the degrees of freedom of the
    standard deviations, infinite where samples determine no part of them. ``tails`` are
    those of errors: beyond one standard deviation quantiles are further out, like those
    of a Student-T with the same central 68%.
    """

    mean: Float[Tensor, "*n"]
    std: Float[Tensor, "*n"]
    log_mean: Float[Tensor, "*n"] | None = None
    log_std: Float[Tensor, "*n"] | None = None
    degrees: Float[Tensor, "*n"] | None = None
    tails: Float[Tensor, "*n"] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Those of one part after the other."""
        names = [field.name for field in fields(cls)]
        given = [name for name in names if getattr(parts[0], name) is not None]
        return cls(**{n: torch.cat([getattr(p, n) for p in parts]) for n in given})

    def quantile(self, probability: float) -> Float[Tensor, "*n"]:
        """A quantile of the normal or log-normal with the posterior's moments.

        A few samples determine two moments far better than an order statistic; that
        they do so with errors makes Student-T quantiles of normal ones. Rays of zero
        length have quantiles of zero.
        """
        if not 0 < probability < 1:
            raise ValueError(f"a probability lies between 0 and 1, got {probability}")
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        if self.degrees is not None:
            z = torch.from_numpy(stdtrit(self.degrees.numpy(), probability))
        if self.tails is not None:
            z = z * _farther(probability, self.tails)
        if self.log_mean is None or self.log_std is None:
            return self.mean + z * self.std
        dark = torch.isinf(self.log_mean)
        exponent = self.log_mean + z * torch.where(dark, 0.0, self.log_std)
        return exponent.exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The posterior of a field: mean and samples of its whitened parameters.

    Parameters
    ----------
    model
        Any forward model of the field; its functionals are not used.
    mean
        Posterior mean (or mode) m of ε.
    samples
        Exact posterior samples of ε.
    residual
        What neighbouring stars share beyond the field, of a non-linear model: it
        corrects line integrals that begin at the observer and values at points.
    """

    model: ForwardModel
    mean: Float[Tensor, " p"]
    samples: Float[Tensor, "s p"]
    residual: ResidualField | None = None

    def __post_init__(self) -> None:
        size = self.model.latent_size
        for name, shape in (("mean", (size,)), ("samples", (len(self.samples), size))):
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ValueError(f"{name} must have shape {shape}, got {found}")
        if len(self.samples) == 1:
            raise ValueError("a posterior needs no sample or at least two, got one")

    def moments(self, functionals: Functionals, *, rows: int = 65536) -> Moments:
        """Mean and std of ``L_n ρ``; std is NaN if the posterior has no samples.

        ``var = (1/S) Σ_s (apply(ε_s) − mean)² + v_n`` for a linear model, whose mean is
        exact; a non-linear model takes the mean over samples, the divisor S − 1 and the
        mean of ``v_n(ε_s)``. Cost: S + 1 applications, and the draws that estimate
        ``v_n``, per ``rows`` functionals.
        """
        parts = [self._part(part) for _, part in functionals.chunks(rows)]
        return Moments.joined(parts or [self._part(functionals)])

    def _part(self, functionals: Functionals) -> Moments:
        """Moments of a few functionals."""
        model = self.model.at(functionals)
        if not model.linear and len(self.samples):
            return self._moments_of_samples(model)
        tangent = model.linearise(self.mean)
        mean = tangent.prediction.to(torch.float64)
        total = torch.zeros_like(mean)
        for sample in self.samples:
            total += (model.apply(sample).to(torch.float64) - mean) ** 2
        variance = total / max(len(self.samples), 1) + tangent.variance
        if not len(self.samples):
            variance = torch.full_like(mean, float("nan"))
            return Moments(mean=mean.cpu(), std=variance.cpu())
        degrees = _degrees(total / len(self.samples), variance, len(self.samples))
        return Moments(mean=mean.cpu(), std=variance.sqrt().cpu(), degrees=degrees)

    def _moments_of_samples(self, model: ForwardModel) -> Moments:
        values, unresolved = self._sampled(model)
        tails = torch.full(values.shape[1:], math.inf, dtype=torch.float64)
        for rows, kind in self._corrected(model.functionals):
            if self.residual is not None and isinstance(kind, LineIntegrals):
                tails[rows] = self.residual.tails
        found = moments_over_samples(values, unresolved, positive=model.positive)
        return replace(found, tails=tails)

    def sampled(
        self, functionals: Functionals, *, rows: int = 2**18
    ) -> tuple[Float[Tensor, "s n"], Float[Tensor, "s n"]]:
        """Every sample's values and the variances of what is unresolved, corrected.

        Without samples, of the mean. ``rows`` functionals are held at once.
        """
        chunks = [part for _, part in functionals.chunks(rows)] or [functionals]
        found = [self._sampled(self.model.at(part)) for part in chunks]
        values, variances = (torch.cat(parts, dim=1) for parts in zip(*found))
        return values, variances

    def _sampled(self, model: ForwardModel) -> tuple[Tensor, Tensor]:
        samples = self.samples if len(self.samples) else self.mean[None]
        shape = (len(samples), len(model.functionals))
        values = torch.zeros(shape, dtype=torch.float64, device=model.device)
        unresolved = torch.zeros_like(values)
        for row, sample in enumerate(samples):
            tangent = model.linearise(sample)
            values[row] = tangent.prediction.to(torch.float64)
            unresolved[row] = tangent.variance.to(torch.float64)
        # The residual is on the CPU whatever the model's device.
        values, unresolved = values.cpu(), unresolved.cpu()
        for rows, kind in self._corrected(model.functionals):
            assert self.residual is not None
            if isinstance(kind, PointValues):
                found = self.residual.correct_density(kind.points, values[:, rows])
            else:
                found = self.residual.correct(kind.end, values[:, rows])
            values[:, rows], unresolved[:, rows] = found
        return values, unresolved

    def draws(
        self, functionals: Functionals, generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """Joint posterior draws of all functionals, including the sub-grid residual."""
        if not len(self.samples):
            return torch.zeros(0, len(functionals), dtype=torch.float64)
        model = self.model.at(functionals)
        unresolved = model.residual_draws(self.samples, generator)
        if self.residual is None:
            return self._values(model, unresolved)
        shape = (len(self.samples), len(functionals))
        white = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self._values(model, unresolved, white)

    def draws_from(
        self, functionals: Functionals, white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """Draws with sub-grid residuals from given standard normals.

        For models with independent residuals. Equal normals may be used for related
        functionals, such as the points along one ray: the moments of each do not
        change. With a residual of neighbouring stars they are independent: it is drawn
        jointly.
        """
        model = self.model.at(functionals)
        return self._values(model, model.residual_from(self.samples, white), white)

    def _values(
        self, model: ForwardModel, unresolved: Tensor, white: Tensor | None = None
    ) -> Float[Tensor, "s n"]:
        """Every sample's values and unresolved part; of sight lines by ``white``."""
        values = torch.stack([model.apply(sample) for sample in self.samples])
        values, unresolved = values.double().cpu(), unresolved.double().cpu()
        for rows, kind in self._corrected(model.functionals):
            assert self.residual is not None
            assert white is not None
            if isinstance(kind, PointValues):
                correct = self.residual.correct_density
                values[:, rows], variance = correct(kind.points, values[:, rows])
                unresolved[:, rows] = variance.sqrt() * white[:, rows]
            else:
                values[:, rows] = draw_extinctions(
                    self.residual, kind.end, values[:, rows], white[:, rows]
                )
                unresolved[:, rows] = 0.0
        return values + unresolved

    def _corrected(
        self, functionals: Functionals
    ) -> Iterator[tuple[slice, LineIntegrals | PointValues]]:
        """Rows that the residual corrects: integrals from the observer and points."""
        for rows, kind in functionals.runs() if self.residual is not None else ():
            if isinstance(kind, PointValues) or (
                isinstance(kind, LineIntegrals) and not bool(kind.start.any())
            ):
                yield rows, kind


def moments_over_samples(
    values: Float[Tensor, "s n"],
    unresolved: Float[Tensor, "s n"],
    *,
    positive: bool,
) -> Moments:
    """Moments over samples, each with a conditional variance.

    For a positive density, a sample's value A and variance v represent a log-normal
    with these moments: its logarithm has variance τ² = ln(1 + v/A²) and mean
    ln A − τ²/2.
    """
    mean, between = values.mean(dim=0), values.var(dim=0)
    variance = between + unresolved.mean(dim=0)
    if not positive:
        degrees = _degrees(between, variance, len(values))
        return Moments(mean=mean.cpu(), std=variance.sqrt().cpu(), degrees=degrees)
    logarithms, scatter = log_moments(values, unresolved)
    between = torch.where(mean <= 0, 0.0, logarithms.var(dim=0))
    spread = between + scatter.mean(dim=0)
    return Moments(
        mean=mean.cpu(),
        std=variance.sqrt().cpu(),
        log_mean=logarithms.mean(dim=0).cpu(),
        log_std=spread.sqrt().cpu(),
        degrees=_degrees(between, spread, len(values)),
    )


def _farther(probability: float, tails: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    r"""The factor on a normal's quantile that makes it one with these ``tails``.

    :math:`t_\nu(p) / (t_\nu(\Phi(1))\, z_p)`: beside one standard deviation it is one.
    """
    if probability == 0.5:
        return torch.ones_like(tails)
    # They are those of a few kinds of functionals.
    degrees, kinds = tails.unique(return_inverse=True)
    far, one = (stdtrit(degrees.numpy(), p) for p in (probability, float(ndtr(1.0))))
    return torch.from_numpy(far / one / ndtri(probability))[kinds]


def _degrees(
    between: Float[Tensor, " n"], variance: Float[Tensor, " n"], samples: int
) -> Float[Tensor, " n"]:
    r"""Degrees of freedom of a variance of which samples determine a part.

    Welch's :math:`\nu = (B + W)^2 / (B^2 / \nu_B)`; antithetic pairs give one degree
    each, :math:`\nu_B = S / 2`.
    """
    share = torch.where(variance > 0, between / variance, 0.0)
    return (samples / 2 / share.square()).cpu()


def log_moments(
    mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of the logarithm of a log-normal with these moments.

    For a mean of zero (a ray of zero length) they are −∞ and 0.
    """
    dark = mean <= 0
    relative = torch.where(dark, 0.0, variance / torch.where(dark, 1.0, mean) ** 2)
    squared = torch.log1p(relative)
    return mean.log() - squared / 2, squared
