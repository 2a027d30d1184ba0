"""Extinction along rays, with its std."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.isotonic import non_decreasing
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.models.lognormal import LogNormal
from dustmap.moments import Moments, moments_over_samples
from pipelines.base.progress import Progress, say
from pipelines.base.quantiles import summaries
from pipelines.cubes.sky import REGRESSION
from pipelines.model.observations import exit_distances, rays
from pipelines.model.plan import RESIDUAL_DRAWS
from pipelines.run.folder import Run

# Bytes of samples' densities in the cache for the next segments.
_DENSITIES = 2**31
# Segments per batch: 400 bytes each for the weights, and 16 for every sample.
_SEGMENTS = 2**19


def _outward_moments(
    run: Run,
    far: Float[Tensor, "i 3"],
    near: Float[Tensor, "i 3"],
    accumulate: Callable[[Tensor], Tensor],
    kept: list[Tensor],
) -> Moments:
    """Return moments [mag] of integrals from the observer to far points.

    ``accumulate`` adds the integrals from near to far points along rays. Samples are
    accumulated before moments are taken; the unresolved part is drawn jointly, and the
    stars' residual corrects it. ``kept`` caches the densities of a log-normal
    posterior's samples for the next call, up to 2 GiB.
    """
    posterior, residual = run.posterior, run.posterior.residual
    # Short segments need shorter steps than the stars' whole rays.
    fine = replace(run.plan, ray_step=run.plan.ray_step / 2)
    model = posterior.model.at(rays(fine, far, near))

    def outwards(values: Tensor) -> Tensor:
        return accumulate(values.to(torch.float64).cpu())

    if isinstance(model, LogNormal) and len(posterior.samples):
        densities = _densities(model, posterior.samples, kept)
        if residual is None:
            # As in `Posterior.moments`, sample by sample.
            pairs = (model.predict_from_density(density) for density in densities)
            found = [[outwards(part) for part in pair] for pair in pairs]
            values, unresolved = (torch.stack(parts) for parts in zip(*found))
            return moments_over_samples(values, unresolved, positive=True)
        # Nearby stars constrain the unresolved part.
        values = [outwards(model.weights.matvec(density)) for density in densities]
        values, variance = residual.correct(far, torch.stack(values))
        found = moments_over_samples(values, variance, positive=True)
        return replace(found, tails=torch.full_like(found.mean, residual.tails))
    mean = outwards(model.apply(posterior.mean))
    if not len(posterior.samples):
        return Moments(mean=mean, std=torch.full_like(mean, float("nan")))
    variance = torch.zeros_like(mean)
    for sample in posterior.samples:
        deviation = outwards(model.apply(sample)) - mean
        variance += deviation**2 / len(posterior.samples)
    # The same for all distances of a direction.
    generator = torch_stream(run.seed, Purpose.UNRESOLVED)
    repeated = posterior.mean.expand(RESIDUAL_DRAWS, -1)
    for draw in model.residual_draws(repeated, generator):
        variance += outwards(draw) ** 2 / RESIDUAL_DRAWS
    return Moments(mean=mean, std=variance.sqrt())


def _densities(
    model: LogNormal, samples: Tensor, kept: list[Tensor]
) -> Iterator[Tensor]:
    """Yield every sample's density on the grid, cached if all fit in memory."""
    size = model.whitening.tori.size * samples.element_size() * len(samples)
    for i, sample in enumerate(samples):
        density = kept[i] if i < len(kept) else model.density(sample)
        if i == len(kept) and size <= _DENSITIES:
            kept.append(density)
        yield density


def ray_integrals(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> Iterator[tuple[slice, Moments]]:
    """Yield moments [mag] of ``∫_0^d ρ ds`` for batches of rays, in order.

    They have the shape ``(e, rays of the batch)``, NaN outside the box. Samples and
    sub-grid residual are accumulated along every ray before moments are taken, in
    batches of half a million ray segments.

    Parameters
    ----------
    run
        A finished fit.
    directions
        Unit vectors, shape ``(n, 3)``.
    edges
        Increasing distances [pc], shape ``(e,)`` or ``(e, n)``.
    """
    plan = run.plan
    kept: list[Tensor] = []
    towards = torch.as_tensor(directions)
    distances = torch.as_tensor(edges, dtype=torch.float64).reshape(len(edges), -1)
    distances = distances.expand(len(edges), len(directions))
    exits, start = exit_distances(plan.grid, towards), 0
    while start < len(directions):
        # A point outside the box costs a fourth of a segment's memory.
        window = slice(start, start + max(1, 4 * _SEGMENTS // len(edges)))
        segments = (distances[:, window] <= exits[window]).sum(dim=0).cumsum(dim=0)
        most = torch.tensor(max(_SEGMENTS, int(segments[0])))
        part = slice(start, start + int(torch.searchsorted(segments, most, right=True)))
        start = part.stop
        far = distances[:, part, None] * towards[part]
        inside = plan.grid.contains(far.reshape(-1, 3)).reshape(far.shape[:2])
        if plan.is_full_batch:
            places = inside.reshape(-1).nonzero()[:, 0]

            def accumulate(values: Tensor, inside=inside, places=places) -> Tensor:
                """Accumulate along each ray up to the end of each segment."""
                total = torch.zeros(inside.shape, dtype=torch.float64)
                total.view(-1)[places] = values
                return total.cumsum(dim=0).view(-1)[places]

            near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
            ends = far[inside], near[inside]
            found = _outward_moments(run, *ends, accumulate, kept)
        else:
            # Rows are exact there, and joint residuals too expensive: use whole rays.
            found = run.posterior.moments(rays(plan, far[inside]))
        arrays = {}
        for name in (field.name for field in fields(Moments)):
            if (values := getattr(found, name)) is not None:
                arrays[name] = torch.full(inside.shape, torch.nan, dtype=torch.float64)
                arrays[name][inside] = values
        yield part, Moments(**arrays)


def integrals_along(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the moments of `ray_integrals` by name (float32), shape ``(e, n)``.

    The second result describes the changes by `outward_summaries`, if any: the number
    of ``rays`` and of those ``changed``, and the largest and the median over rays of
    the largest change of the median [mag in the run's band].
    """
    arrays: dict[str, np.ndarray] = {}
    changes = np.zeros(len(directions))
    with Progress(
        description="integrated extinction", total=len(directions), unit="px"
    ) as progress:
        for part, moments in ray_integrals(run, directions, edges):
            found, changes[part] = outward_summaries(moments)
            for name, values in found.items():
                if name not in arrays:
                    shape = (len(edges), len(directions))
                    arrays[name] = np.empty(shape, dtype=np.float32)
                arrays[name][:, part] = values
            progress.update(part.stop - part.start)
    changed = int(np.count_nonzero(changes))
    if not changed:
        return arrays, {}
    largest, middle = float(changes.max()), float(np.median(changes))
    say(
        f"the median extinction decreased along {changed:,} of {len(changes):,} rays: "
        f"isotonic regression changes it by at most {largest:.2g} mag, and by "
        f"{middle:.2g} mag along the median ray"
    )
    changed_by = {
        "rays": len(changes),
        "changed": changed,
        "largest_change_mag": largest,
        "median_change_mag": middle,
    }
    return arrays, {REGRESSION: changed_by}


def outward_summaries(
    moments: Moments, *, quantiles: bool | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return `summaries` of extinctions ``(e, n)`` from the observer; NaN outside.

    The mean and the quantiles of a positive density never decrease along a ray: if the
    residual of neighbouring stars lowers them, or widens the distribution,
    `non_decreasing` corrects them. The second result is the largest change of the
    median [mag] along each ray, shape ``(n,)``.
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
