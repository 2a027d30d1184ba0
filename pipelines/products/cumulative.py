"""Extinction from the observer outwards along rays, with the std of the integral."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from dustmap.isotonic import non_decreasing
from dustmap.moments import Moments
from pipelines.base.quantiles import summaries
from pipelines.model.observations import exit_distances, rays
from pipelines.products.segments import SegmentMoments
from pipelines.run.folder import Run

# Segments looked at together: some 400 bytes each while their weights are made, and 16
# for every sample.
_SEGMENTS = 2**19


class RayIntegrals:
    """``∫_0^d ρ ds`` for many rays and distances, with the moments of the integral.

    Samples and sub-grid residual are accumulated along every ray before moments are
    taken. Rays are cut into segments, which are looked at half a million at a time.

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
        self._run, self._segments = run, SegmentMoments(run)
        self._directions = torch.as_tensor(directions)
        distances = torch.as_tensor(edges, dtype=torch.float64)
        self.shape = (len(edges), len(directions))
        self._edges = distances.reshape(len(edges), -1).expand(self.shape)

    def parts(self) -> Iterator[slice]:
        """Runs of directions, in order, to ask `moments` for one after another."""
        exits = exit_distances(self._run.plan.grid, self._directions)
        start = 0
        while start < self.shape[1]:
            # Points outside the box cost a place in arrays, a fourth of a segment's.
            window = slice(start, start + max(1, 4 * _SEGMENTS // self.shape[0]))
            inside = self._edges[:, window] <= exits[window]
            segments = inside.sum(dim=0).cumsum(dim=0)
            most = torch.tensor(max(_SEGMENTS, int(segments[0])))
            stop = start + int(torch.searchsorted(segments, most, right=True))
            yield slice(start, stop)
            start = stop

    def moments(self, part: slice) -> Moments:
        """Moments [mag] of shape ``(e, len(part))``; NaN where a ray left the box."""
        plan, posterior = self._run.plan, self._run.posterior
        far = self._edges[:, part, None] * self._directions[part]
        inside = plan.grid.contains(far.reshape(-1, 3)).reshape(far.shape[:2])
        places = inside.reshape(-1).nonzero()[:, 0]
        if not plan.is_full_batch:
            # Rows are exact there, and their joint residuals too expensive: whole rays.
            return _scattered(posterior.moments(rays(plan, far[inside])), inside)

        def outwards(values: Tensor) -> Tensor:
            """The sum along each ray up to the end of each segment."""
            total = torch.zeros(inside.shape, dtype=torch.float64)
            total.view(-1)[places] = values
            return total.cumsum(dim=0).view(-1)[places]

        near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
        found = self._segments.of(
            far[inside], near[inside], outwards, joint=True, outwards=True
        )
        return _scattered(found, inside)


def outward_summaries(
    moments: Moments, *, quantiles: bool | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """`summaries` of extinctions ``(e, n)`` from the observer; NaN outside the box.

    The mean and the quantiles of a positive density do not fall along a ray: where the
    residual of neighbouring stars lowers them, or widens the distribution, they are
    those of `non_decreasing`. The largest change of the median [mag] along each ray,
    shape ``(n,)``, is the second result.
    """
    found = summaries(moments, quantiles=quantiles)
    distances, rays = moments.mean.shape
    if moments.log_mean is None:
        return found, np.zeros(rays)
    names = [name for name in found if name != "std"]
    curves = np.stack([found[name].T.reshape(-1) for name in names])
    starts = distances * np.arange(rays + 1)
    assert moments.log_std is not None
    variances = moments.log_std.numpy().T.reshape(-1) ** 2
    rising = non_decreasing(curves, variances, starts)
    for name, curve in zip(names, rising, strict=True):
        found[name] = curve.reshape(rays, distances).T
    middle = names.index("p50")
    changes = np.abs(rising[middle] - curves[middle]).reshape(rays, distances)
    return found, np.nan_to_num(changes).max(axis=1)


def _scattered(moments: Moments, inside: Tensor) -> Moments:
    """Moments of the segments inside as an array over distances and directions."""

    def full(values: Tensor) -> Tensor:
        array = torch.full(tuple(inside.shape), float("nan"), dtype=torch.float64)
        array[inside] = values
        return array

    found = {field.name: getattr(moments, field.name) for field in fields(Moments)}
    return Moments(
        **{k: full(value) for k, value in found.items() if value is not None}
    )
