"""What a run is turned into: a density cube, sky maps, lines of sight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import healpy
import numpy as np
import torch

import dustmap
from dustmap.functionals import PointValues
from dustmap.models.base import ForwardModel
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Moments, Posterior
from pipelines.catalog.schema import Stars, read_stars
from pipelines.errors import InputError
from pipelines.export.cube import Cube, LineOfSight, SkyMaps
from pipelines.observations import rays
from pipelines.predict import QUANTILES
from pipelines.progress import Progress
from pipelines.run import Run
from pipelines.truth import unit_vectors

# Directions integrated at once: bounds the memory of the projection.
_DIRECTIONS = 16_384
# Seed of the sub-grid residual, the same for every distance of one direction.
_RESIDUAL_SEED = 1


def map_cube(run: Run) -> Cube:
    """Posterior mean and std of the density at the grid points, and sight lines.

    At its own points the grid resolves the field, so that no sub-grid variance is
    added there.
    """
    grid = run.plan.grid
    model = run.posterior.model
    if isinstance(model, RowwiseGaussian):
        moments = _inducing_moments(run.posterior, model)
    else:
        moments = run.posterior.moments(PointValues(grid.points()), rows=2**18)
    values = {"mean": moments.mean, "std": moments.std}
    if moments.log_mean is not None:
        # The mean of a lognormal grows without bound where no star looks: the median
        # does not.
        values |= {name: moments.quantile(p) for name, p in QUANTILES.items()}
    arrays = {
        **{n: _cube_order(v.numpy(), grid.shape) for n, v in values.items()},
        "support": _cube_order(run.support.numpy().reshape(-1), grid.shape),
    }
    x, y, z = (grid.axis(d).numpy() for d in range(3))
    return Cube(x=x, y=y, z=z, arrays=arrays, meta=provenance(run))


def _inducing_moments(posterior: Posterior, model: RowwiseGaussian) -> Moments:
    """At its inducing points the published engine needs no solve: ``u = R ε``."""
    mean = model.whitening.colour(posterior.mean)
    deviations = model.whitening.colour(posterior.samples) - mean
    if len(deviations):
        std = (deviations**2).mean(dim=0).sqrt()
    else:
        std = torch.full_like(mean, float("nan"))
    return Moments(mean=mean + model.mean(model.whitening.grid.points()), std=std)


def _cube_order(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """From C order of (x, y, z) to an array (z, y, x)."""
    cube = values.reshape(shape).transpose(2, 1, 0)
    return np.ascontiguousarray(cube, dtype=np.float32)


def provenance(run: Run) -> dict[str, Any]:
    """What an exported file says of its origin."""
    catalogues = _catalogues(run)
    bands = sorted({entry["band"] for entry in catalogues if entry["band"]})
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "plan": run.plan.as_dict(),
        "configuration": run.provenance["configuration"],
        "inputs": run.provenance["inputs"],
        "catalogues": catalogues,
        "extinction_band": ", ".join(bands) or "as in the catalogue",
    }


def _catalogues(run: Run) -> list[dict[str, str]]:
    """Name, reference, DOI and extinction band of every catalogue that is known."""
    catalogue = run.provenance.get("catalogue") or {}
    tables = catalogue.get("partitions", {"": catalogue}).values()
    presets = [table.get("preset") for table in tables]
    wanted = ("name", "title", "reference", "doi", "band")
    return [{key: str(p.get(key, "")) for key in wanted} for p in presets if p]


def default_distances(run: Run, count: int = 6) -> np.ndarray:
    """Even, round distances [pc] out to the box's furthest face."""
    reach = _reach(run)
    step = reach / count
    power = 10.0 ** math.floor(math.log10(step))
    step = max(f * power for f in (1, 2, 2.5, 5, 10) if f * power <= step * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def _reach(run: Run) -> float:
    """Distance to the furthest face of the box along an axis [pc]."""
    corners = (*run.plan.grid.lower, *run.plan.grid.upper)
    return max(abs(edge) for edge in corners)


def _farthest(run: Run) -> float:
    """Distance to the box's furthest corner [pc]."""
    grid = run.plan.grid
    sides = zip(grid.lower, grid.upper, strict=True)
    return math.hypot(*(max(-low, high) for low, high in sides))


def default_nside(run: Run) -> int:
    """The coarsest resolution whose pixels are a grid step or less, within 16..128.

    The published engine pays a solve for every pixel and distance: 8.
    """
    if run.plan.engine == "svi":
        return 8
    angle = min(run.plan.grid.spacing) / (_reach(run) / 2)
    nside = 16
    while nside < 128 and healpy.nside2resol(nside) > angle:
        nside *= 2
    return nside


def sky_maps(
    run: Run, *, distances: np.ndarray | None = None, nside: int | None = None
) -> SkyMaps:
    """Cumulative extinction and its std out to a list of distances, HEALPix NESTED.

    The std is that of the integral: samples and sub-grid residual are accumulated
    along every ray before the variance is taken.
    """
    edges = default_distances(run) if distances is None else np.asarray(distances)
    if not len(edges) or not (np.diff(edges) > 0).all() or not edges[0] > 0:
        raise InputError(f"distances must be positive and increasing, got {edges}")
    if edges[-1] > _farthest(run):
        raise InputError(
            f"distances go to {edges[-1]:g} pc, where no sight line is still inside "
            f"the map: its furthest corner is {_farthest(run):.6g} pc away"
        )
    nside = default_nside(run) if nside is None else nside
    if not healpy.isnsideok(nside, nest=True):
        raise InputError(f"nside must be a power of 2, got {nside}")
    pixels = healpy.nside2npix(nside)
    lon, lat = healpy.pix2ang(nside, np.arange(pixels), nest=True, lonlat=True)
    directions = unit_vectors(lon, lat)
    mean = np.full((len(edges), pixels), np.nan)
    std = np.full((len(edges), pixels), np.nan)
    with Progress(description="sky maps", total=pixels, unit="px") as progress:
        for start in range(0, pixels, _DIRECTIONS):
            part = slice(start, min(start + _DIRECTIONS, pixels))
            mean[:, part], std[:, part] = cumulative(run, directions[part], edges)
            progress.update(part.stop - part.start)
    return SkyMaps(distances=edges, mean=mean, std=std, meta=provenance(run))


def cumulative(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std [mag] of ``∫_0^d ρ ds`` at distances ``edges`` [pc].

    ``edges`` has shape ``(e,)``, or ``(e, n)`` with other distances for each of n
    directions. Returns shape ``(e, n)``; NaN where the ray has left the box.
    """
    posterior, plan = run.posterior, run.plan
    along = torch.as_tensor(directions)
    distances = torch.as_tensor(edges, dtype=torch.float64)
    far = distances.reshape(len(edges), -1, 1) * along
    inside = plan.grid.contains(far.reshape(-1, 3)).reshape(len(edges), len(along))
    shape = tuple(inside.shape)
    if plan.engine == "svi":
        # Rows are exact there, and their joint residuals too dear: whole rays.
        whole = posterior.moments(rays(plan, far[inside]))
        return _scattered(whole.mean, inside), _scattered(whole.std, inside)
    near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
    # Short segments need shorter steps than the stars' whole rays.
    fine = replace(plan, ray_step=plan.ray_step / 2)
    model = posterior.model.at(rays(fine, far[inside], near[inside]))

    def summed(values: torch.Tensor) -> torch.Tensor:
        """Segments of every ray, accumulated from the observer outwards."""
        total = torch.zeros(shape, dtype=torch.float64)
        total[inside] = values.to(torch.float64).cpu()
        return total.cumsum(dim=0)

    if not model.linear:
        mean, variance = _moments_along(model, posterior, summed)
        return (
            _scattered(mean[inside], inside),
            _scattered(variance[inside].sqrt(), inside),
        )
    mean = summed(model.apply(posterior.mean))
    variance = torch.zeros(shape, dtype=torch.float64)
    for sample in posterior.samples:
        variance += (summed(model.apply(sample)) - mean) ** 2
    variance /= max(len(posterior.samples), 1)
    generator = torch.Generator().manual_seed(_RESIDUAL_SEED)
    repeated = posterior.mean.expand(plan.residual_count, -1)
    for draw in model.residual_draws(repeated, generator):
        variance += summed(draw) ** 2 / plan.residual_count
    if not len(posterior.samples):
        variance[:] = float("nan")
    return (
        _scattered(mean[inside], inside),
        _scattered(variance[inside].sqrt(), inside),
    )


def _moments_along(
    model: ForwardModel,
    posterior: Posterior,
    summed: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over samples of what rays have seen so far.

    What the grid cannot resolve of different segments is independent: it adds up.
    """
    samples = posterior.samples
    if not len(samples):
        mean = summed(model.apply(posterior.mean))
        return mean, torch.full_like(mean, float("nan"))
    count = len(samples)
    first = second = unresolved = torch.zeros(())
    for sample in samples:
        tangent = model.linearise(sample)
        seen = summed(tangent.prediction)
        first, second = first + seen / count, second + seen**2 / count
        unresolved = unresolved + summed(tangent.variance) / count
    spread = (second - first**2).clamp(min=0.0) * count / max(count - 1, 1)
    return first, spread + unresolved


def _scattered(values: torch.Tensor, inside: torch.Tensor) -> np.ndarray:
    full = np.full(tuple(inside.shape), np.nan)
    full[inside.numpy()] = values.numpy()
    return full


def lines_of_sight(
    run: Run, directions: Sequence[tuple[float, float]] | None = None, points: int = 60
) -> list[LineOfSight]:
    """Cumulative extinction with error along a few directions, and the stars near."""
    stars = read_stars(run.path / "stars.parquet")
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    lines = []
    chosen = default_directions(stars) if directions is None else list(directions)
    vectors = unit_vectors(*np.array(chosen).T)
    reach = np.array([_exit_distance(run, vector) for vector in vectors])
    edges = np.linspace(0, reach * (1 - 1e-9), points + 1)[1:]
    mean, std = cumulative(run, vectors, edges)
    for i, (lon, lat) in enumerate(chosen):
        near, radius = _stars_near(stars, vectors[i])
        lines.append(
            LineOfSight(
                l=lon,
                b=lat,
                distance=edges[:, i],
                mean=mean[:, i],
                std=std[:, i],
                star_distance=stars.distance[near],
                star_extinction=stars.extinction[near],
                star_error=stars.extinction_error[near],
                radius=radius,
            )
        )
    return lines


def default_directions(stars: Stars, count: int = 6) -> list[tuple[float, float]]:
    """Directions spread over the sky among the stars of largest extinction signal.

    Greedy: the star of the highest extinction, then the highest that is at least
    30 deg away from all chosen before (less where the field is small).
    """
    assert stars.extinction is not None
    vectors = unit_vectors(stars.l, stars.b)
    order = np.argsort(stars.extinction)[::-1]
    separation = math.radians(30)
    chosen: list[int] = []
    while len(chosen) < count and separation > 1e-4:
        for index in order:
            if len(chosen) == count:
                break
            cosines = vectors[chosen] @ vectors[index] if chosen else np.zeros(0)
            if (cosines < math.cos(separation)).all():
                chosen.append(int(index))
        separation /= 2
    return [(float(stars.l[i]), float(stars.b[i])) for i in chosen]


def _exit_distance(run: Run, direction: np.ndarray) -> float:
    """Distance at which a ray from the observer leaves the box [pc]."""
    distance = math.inf
    grid = run.plan.grid
    for low, high, cosine in zip(grid.lower, grid.upper, direction, strict=True):
        if abs(cosine) > 1e-12:
            distance = min(distance, (high if cosine > 0 else low) / cosine)
    return distance


def _stars_near(stars: Stars, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Up to 60 stars within the smallest radius that holds them, at most 3 deg."""
    cosine = np.clip(unit_vectors(stars.l, stars.b) @ direction, -1.0, 1.0)
    angle = np.degrees(np.arccos(cosine))
    nearest = np.argsort(angle)[:60]
    near = nearest[angle[nearest] <= 3.0]
    radius = float(angle[near].max()) if len(near) else 3.0
    # Rounded up, for the figure's title.
    return near, math.ceil(10 * radius) / 10
