"""The residual that neighbouring stars share: learnt, stored, read back."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from dustmap.functionals import PointValues, Stack
from dustmap.grid import Grid
from dustmap.posterior import Posterior
from dustmap.residual.covariance import Rays, rays_to
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField, least_density
from dustmap.residual.learning import learn_residual, relearn_residual
from pipelines.base.errors import InputError
from pipelines.catalog.schema import FEWEST_VALIDATION, Stars
from pipelines.model.observations import outward_rays
from pipelines.model.plan import Plan

FILE = "residual.safetensors"
_ROWS = 131_072
# Scales with less than this part of the largest standard deviation are not told.
_TOLD = 0.02
NO_RESIDUAL = (
    "model.residual: no residual was learnt: it needs a lognormal density, "
    f"posterior samples and {FEWEST_VALIDATION} stars in data.validation"
)
_OF_RAYS = ("directions", "lengths", "density")
_TENSORS = ("stated", "noise", "weights", "scales")
_CONSTANTS = ("nugget", "outliers", "stretch", "tails")


def fit_residual(
    posterior: Posterior,
    plan: Plan,
    stars: Stars,
    validation: int,
    generator: torch.Generator,
    *,
    known: ResidualField | None = None,
) -> ResidualField:
    """Learn what the map misses of the stars' extinctions, as a field between them.

    The map has not seen the last stars, ``validation`` in number: the covariance is
    learnt on them, and then they are neighbours like the fitted ones. The generator
    puts them in a random order: catalogues are ordered on the sky. The form of the
    covariance and the outliers are those of a ``known`` residual of the same stars.
    Without samples the residuals are those of the posterior's mean.

    Raises
    ------
    FloatingPointError
        If no covariance is positive definite.
    """
    ends = torch.as_tensor(stars.positions())
    values = _samples_at(posterior, plan, ends)
    extinctions, density = values.unbind(1)
    observed = torch.as_tensor(stars.extinction)
    at = density.square().mean(dim=0).sqrt()
    # As large as the extinctions.
    del values, density
    noise = torch.as_tensor(stars.variance(0.0, plan.common_noise))
    errors = torch.as_tensor(stars.placing_error)
    mean = extinctions.mean(dim=0)
    least = least_density(mean, ends.norm(dim=1))
    given = (
        rays_to(ends, mean, least),
        observed - extinctions,
        noise,
        len(stars) - validation + torch.randperm(validation, generator=generator),
    )
    placing, cube = (at * errors) ** 2, _mean_cube(posterior, plan, least)
    if known is None:
        return learn_residual(*given, placing=placing, cube=cube)
    return relearn_residual(known, *given, placing=placing, cube=cube)


def _mean_cube(posterior: Posterior, plan: Plan, least: float) -> DensityCube:
    """The samples' mean density at the grids' points, at least this [mag/pc]."""
    found, draws = [], _draws(posterior)
    for points in torch.cat([g.points() for g in plan.grids]).split(_ROWS):
        model = posterior.model.at(PointValues(points))
        total = torch.zeros(len(points), dtype=torch.float64)
        for sample in draws:
            total += model.apply(sample).to(torch.float64).cpu()
        found.append(total / len(draws))
    return DensityCube(values=torch.cat(found).clamp_min(least), grids=plan.grids)


def _samples_at(posterior: Posterior, plan: Plan, ends: Tensor) -> Tensor:
    """Extinctions to places [pc] and densities there, ``(samples, 2, places)``."""
    found, draws = [], _draws(posterior)
    for part in ends.split(_ROWS):
        both = Stack([outward_rays(plan, part), PointValues(part)])
        model = posterior.model.at(both)
        values = torch.stack([model.apply(sample) for sample in draws])
        found.append(values.to(torch.float64).cpu().unflatten(1, (2, -1)))
    return torch.cat(found, dim=2)


def _draws(posterior: Posterior) -> Tensor:
    """Its samples; its mean if it has none."""
    return posterior.samples if len(posterior.samples) else posterior.mean[None]


def residual_in_words(field: ResidualField) -> str:
    """The covariance that was chosen, in one line."""
    assert field.cube is not None
    amplitude = "density" if field.cube.power == 1 else "√(density × mean density)"
    std = field.weights.sqrt()
    least = _TOLD * float(std.max())
    parts = zip(field.covariance.lengthscales, std.tolist(), strict=True)
    stds = ", ".join(f"{s:.2g} over {scale:.2g} pc" for scale, s in parts if s >= least)
    weighed = bool((field.noise > field.stated).any())
    outliers = f"; {100 * field.outliers:.2g}% outliers" if weighed else ""
    tails = f"; tails of errors: Student-T, {field.tails:.2g} degrees of freedom"
    along = f"residual: along rays, amplitude {amplitude}; relative std {stds}"
    return along + outliers + tails


def read_residual(folder: Path) -> ResidualField | None:
    """The residual of a run folder; ``None`` if it has none."""
    if not (folder / FILE).is_file():
        return None
    return residual_from((folder / FILE).read_bytes())


def residual_bytes(field: ResidualField) -> bytes:
    """A residual in the safetensors format, in single and in half precision."""
    rays, tensors = field.rays, {"residuals": field.residuals.to(torch.float16)}
    kept = {name: getattr(rays, name) for name in _OF_RAYS}
    kept |= {name: getattr(field, name) for name in _TENSORS}
    tensors |= {name: value.to(torch.float32).clone() for name, value in kept.items()}
    constants = [getattr(field, name) for name in _CONSTANTS]
    cube = field.cube
    assert cube is not None
    tensors["cube"] = cube.values.to(torch.float32)
    places = [(grid.origin, grid.spacing, grid.shape) for grid in cube.grids]
    tensors["grids"] = torch.tensor(places, dtype=torch.float64)
    tensors["power"] = torch.tensor(cube.power, dtype=torch.float64)
    tensors["constants"] = torch.tensor(constants, dtype=torch.float64)
    return save(tensors)


def residual_from(data: bytes) -> ResidualField:
    """The residual that these bytes hold.

    Raises
    ------
    InputError
        If they are of an earlier version.
    """
    tensors = {name: value.to(torch.float64) for name, value in load(data).items()}
    missing = {*_OF_RAYS, *_TENSORS, "cube", "grids"} - set(tensors)
    if missing:
        raise InputError(
            f"the residual of neighbouring stars lacks {', '.join(sorted(missing))}: "
            "it is of an earlier version, fit again"
        )
    constants = zip(_CONSTANTS, tensors["constants"].tolist(), strict=True)
    grids = tuple(
        Grid(origin=tuple(origin), spacing=tuple(spacing), shape=tuple(map(int, shape)))
        for origin, spacing, shape in tensors["grids"].tolist()
    )
    power = float(tensors["power"])
    cube = DensityCube(values=tensors["cube"], grids=grids, power=power)
    return ResidualField(
        rays=cube.along(Rays(**{name: tensors[name] for name in _OF_RAYS})),
        cube=cube,
        residuals=tensors["residuals"],
        **{name: tensors[name] for name in _TENSORS},
        **dict(constants),
    )
