"""Posterior moments and samples of any functional of the field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dustmap.functionals import Functionals, LineIntegrals, PointValues
from dustmap.models.base import ForwardModel
from dustmap.moments import Moments, moments_over_samples
from dustmap.residual.field import ResidualField
from dustmap.residual.stacking import StackedKriging
from dustmap.shapes import Draws, Eps, EpsDraws


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
        Residual that neighbouring stars share, for a non-linear model; it corrects line
        integrals that begin at the observer, and values at points.
    """

    model: ForwardModel
    mean: Eps
    samples: EpsDraws
    residual: ResidualField | None = None

    def __post_init__(self) -> None:
        size = self.model.latent_size
        for name, shape in (("mean", (size,)), ("samples", (len(self.samples), size))):
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ValueError(f"{name} must have shape {shape}, got {found}")
        if len(self.samples) == 1:
            raise ValueError("a posterior needs no samples or at least two, got one")

    @property
    def stack(self) -> StackedKriging | None:
        """Kriging that contributes to extinctions of stars, if any."""
        return None if self.residual is None else self.residual.stack

    def over_cells(self, widths: Sequence[float]) -> Posterior:
        """Return the posterior whose values at points are means over cells around them.

        The residual is averaged over a cube of the cell's volume; the grid's part is
        the value at the centre. ``widths`` are the cell's sides [pc].
        """
        if self.residual is None:
            return self
        width = math.prod(widths) ** (1 / len(widths))
        return replace(self, residual=self.residual.over_cells(width))

    def moments(self, functionals: Functionals, *, rows: int = 65536) -> Moments:
        """Return mean and std of ``L_n ρ``; std is NaN without samples.

        ``var = (1/S) Σ_s (apply(ε_s) − mean)² + v_n`` for a linear model, whose mean is
        exact; for a non-linear model, the mean over samples, the divisor S − 1 and the
        mean of ``v_n(ε_s)``. Cost: S + 1 applications, and the draws that estimate
        ``v_n``, per ``rows`` functionals.
        """
        parts = [self._part(part) for _, part in functionals.chunks(rows)]
        return Moments.joined(parts or [self._part(functionals)])

    def _part(self, functionals: Functionals) -> Moments:
        """Return moments of a few functionals."""
        model = self.model.at(functionals)
        if not model.linear and len(self.samples):
            return self.moments_of(model.functionals, *self._sampled(model))
        tangent = model.linearise(self.mean)
        mean = tangent.prediction.to(torch.float64)
        total = torch.zeros_like(mean)
        for sample in self.samples:
            total += (model.apply(sample).to(torch.float64) - mean) ** 2
        variance = total / max(len(self.samples), 1) + tangent.variance
        if not len(self.samples):
            variance = torch.full_like(mean, float("nan"))
        return Moments(mean=mean.cpu(), std=variance.cpu().sqrt())

    def moments_of(
        self, functionals: Functionals, values: Draws, unresolved: Draws
    ) -> Moments:
        """Return moments of what `sampled` returns, densities with moderated variances.

        See `dustmap.residual.moderation`.
        """
        positive, residual = self.model.positive, self.residual
        found = moments_over_samples(values, unresolved, positive=positive)
        if residual is None or residual.variances is None:
            return found
        mean, std = found.mean.clone(), found.std.clone()
        for rows, kind in functionals.runs():
            if isinstance(kind, PointValues):
                law, places = residual.variances, kind.places
                around, most = residual.surroundings(places), residual.resolved(places)
                part = moments_over_samples(
                    values[:, rows],
                    unresolved[:, rows],
                    positive=positive,
                    moderate=partial(law.moderated, around=around, most=most),
                )
                mean[rows], std[rows] = part.mean, part.std
        return replace(found, mean=mean, std=std)

    def sampled(
        self, functionals: Functionals, *, rows: int = 2**18
    ) -> tuple[Draws, Draws]:
        """Return every sample's corrected values and their unresolved variances.

        Without samples, return the values of the mean. Functionals are evaluated
        ``rows`` at a time.
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
        # The residual corrects the observer's integrals, and values at points.
        parts = [
            (rows, kind)
            for rows, kind in (model.functionals.runs() if self.residual else ())
            if isinstance(kind, PointValues)
            or (isinstance(kind, LineIntegrals) and not bool(kind.start.any()))
        ]
        # The residual replaces the variance below the grid.
        known = sum(len(kind) for _, kind in parts) == len(model.functionals)
        for row, sample in enumerate(samples):
            if known:
                values[row] = model.apply(sample).to(torch.float64)
                continue
            tangent = model.linearise(sample)
            values[row] = tangent.prediction.to(torch.float64)
            unresolved[row] = tangent.variance.to(torch.float64)
        # The residual's tensors are on the CPU, for any device of the model.
        values, unresolved = values.cpu(), unresolved.cpu()
        if parts:
            # Together, as extinction and density at one place have the same neighbours.
            assert self.residual is not None
            parts.sort(key=lambda part: isinstance(part[1], PointValues))
            number = torch.arange(len(model.functionals))
            rows = torch.cat([number[some] for some, _ in parts])
            ends = torch.cat([kind.places for _, kind in parts])
            points = sum(len(k) for _, k in parts if isinstance(k, PointValues))
            found = self.residual.correct(ends, values[:, rows], points)
            values[:, rows], unresolved[:, rows] = found
        return values, unresolved

    def draws(self, functionals: Functionals, generator: torch.Generator) -> Draws:
        """Draw all functionals jointly, including the sub-grid residual.

        Raises `ValueError` if neighbouring stars share a residual: its draws are those
        of `dustmap.isotonic.Ranked.samples`.
        """
        if self.residual is not None:
            raise ValueError("joint draws need a posterior without a shared residual")
        if not len(self.samples):
            return torch.zeros(0, len(functionals), dtype=torch.float64)
        model = self.model.at(functionals)
        unresolved = model.residual_draws(self.samples, generator)
        values = torch.stack([model.apply(sample) for sample in self.samples])
        return values.double().cpu() + unresolved.double().cpu()
