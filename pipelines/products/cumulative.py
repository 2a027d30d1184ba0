"""Extinction from the observer outwards along rays, with the std of the integral."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.posterior import Moments
from pipelines.model.observations import exit_distances, rays
from pipelines.products.ray_sums import LogMoments, RaySums
from pipelines.run.folder import Run

# Seed of the sub-grid residual, the same for every distance of one direction.
_RESIDUAL_SEED = 1
# Segments looked at together: some 400 bytes each while their weights are made.
_SEGMENTS = 2**20
# Bytes of samples' densities that are kept for the next segments.
_DENSITIES = 2**31


class RayIntegrals:
    """``∫_0^d ρ ds`` for many rays and distances, with the moments of the integral.

    Samples and sub-grid residual are accumulated along every ray before moments are
    taken. Rays are cut into segments, which are looked at a million at a time
    (0.7 GiB while their weights are made). The densities of a log-normal
    posterior's samples are coloured once where they fit in 2 GiB together, otherwise
    once per million segments.

    Parameters
    ----------
    run
        A finished fit.
    directions
        Unit vectors, shape ``(n, 3)``.
    edges
        Increasing distances [pc], shape ``(e,)`` or ``(e, n)``.
    """

    def __init__(self, run: Run, directions: np.ndarray, edges: np.ndarray) -> None:
        self._plan, self._posterior = run.plan, run.posterior
        self._directions = torch.as_tensor(directions)
        self._edges = torch.as_tensor(edges, dtype=torch.float64)
        self.shape = (len(edges), len(directions))
        self._kept: list[Tensor] = []

    def parts(self) -> Iterator[slice]:
        """Runs of directions, in order, to ask `moments` for one after another."""
        exits = exit_distances(self._plan.grid, self._directions)
        edges = self._edges.reshape(self.shape[0], -1)
        start = 0
        while start < self.shape[1]:
            # Points outside the box cost a place in arrays, a fourth of a segment's.
            window = slice(start, start + max(1, 4 * _SEGMENTS // self.shape[0]))
            far = edges if edges.shape[1] == 1 else edges[:, window]
            segments = (far <= exits[window]).sum(dim=0).cumsum(dim=0)
            most = torch.tensor(max(_SEGMENTS, int(segments[0])))
            stop = start + int(torch.searchsorted(segments, most, right=True))
            yield slice(start, stop)
            start = stop

    def moments(self, part: slice) -> Moments:
        """Moments [mag] of shape ``(e, len(part))``; NaN where a ray left the box."""
        far = self._far(part)
        grid = self._plan.grid
        inside = grid.contains(far.reshape(-1, 3)).reshape(far.shape[:2])
        if self._plan.engine == "svi":
            # Rows are exact there, and their joint residuals too dear: whole rays.
            whole = self._posterior.moments(rays(self._plan, far[inside]))
            return _scattered(whole, inside)
        near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
        # Short segments need shorter steps than the stars' whole rays.
        fine = replace(self._plan, ray_step=self._plan.ray_step / 2)
        model = self._posterior.model.at(rays(fine, far[inside], near[inside]))
        sums = RaySums(inside)
        if isinstance(model, LogNormal) and len(self._posterior.samples):
            return _scattered(self._of_samples(model, sums), inside)
        return _scattered(self._of_linear(model, sums), inside)

    def _far(self, part: slice) -> Tensor:
        edges = self._edges if self._edges.ndim == 1 else self._edges[:, part]
        return edges.reshape(len(edges), -1, 1) * self._directions[part]

    def _densities(self, model: LogNormal) -> Iterator[Tensor]:
        """Every sample's density on the grid, coloured once if all of them fit."""
        samples = self._posterior.samples
        size = model.whitening.fine_size * samples.element_size() * len(samples)
        for i, sample in enumerate(samples):
            density = self._kept[i] if i < len(self._kept) else model.density(sample)
            if i == len(self._kept) and size <= _DENSITIES:
                self._kept.append(density)
            yield density

    def _of_samples(self, model: LogNormal, sums: RaySums) -> Moments:
        """Moments over samples of what rays have seen so far.

        What the grid cannot resolve of different segments is independent: it adds up.
        """
        seen = LogMoments(sums.size)
        for density in self._densities(model):
            prediction, variance = model.predict_from_density(density)
            seen.add(sums.outwards(prediction), sums.outwards(variance))
        return seen.moments()

    def _of_linear(self, model: ForwardModel, sums: RaySums) -> Moments:
        posterior, count = self._posterior, self._plan.residual_count
        mean = sums.outwards(model.apply(posterior.mean))
        if not len(posterior.samples):
            return Moments(mean=mean, std=torch.full_like(mean, float("nan")))
        variance = torch.zeros_like(mean)
        for sample in posterior.samples:
            seen = sums.outwards(model.apply(sample))
            variance += (seen - mean) ** 2 / len(posterior.samples)
        generator = torch.Generator().manual_seed(_RESIDUAL_SEED)
        for draw in model.residual_draws(posterior.mean.expand(count, -1), generator):
            variance += sums.outwards(draw) ** 2 / count
        return Moments(mean=mean, std=variance.sqrt())


def _scattered(moments: Moments, inside: Tensor) -> Moments:
    """Moments of the segments inside as an array over distances and directions."""

    def full(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        array = torch.full(tuple(inside.shape), float("nan"), dtype=torch.float64)
        array[inside] = values
        return array

    names = ("mean", "std", "log_mean", "log_std")
    return Moments(**{name: full(getattr(moments, name)) for name in names})  # pyright: ignore[reportArgumentType]
