"""The residual that neighbouring stars share: learnt, stored, read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from dustmap.memory import rows_within
from dustmap.models.lognormal import LogNormal
from dustmap.moments import log_variance
from dustmap.posterior import Posterior
from dustmap.residual.covariance import CPU, Rays, SubgridCovariance, rays_to
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField, least_density
from dustmap.residual.learning import LocalMeanKriging, learn_residual, relearnt_on
from dustmap.residual.moderation import (
    FEWEST_PLACES,
    FEWEST_SAMPLES,
    MOST_PLACES,
    VarianceLaw,
    learn_variance_law,
)
from dustmap.residual.predictive import PredictiveLaw
from dustmap.residual.stacking import StackedKriging
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars
from pipelines.model.engine import rays
from pipelines.model.plan import Plan

RESIDUAL_FILE = "residual.safetensors"
# Layout of the file, in its header; it grows by one with every change. Version 2 has
# no law of variances, version 3 no weights of densities.
VERSION = 4
_READ = ("2", "3", str(VERSION))
NO_RESIDUAL = (
    "model.residual: no residual was learnt: it needs a lognormal density, "
    "posterior samples, and a Matern kernel"
)
_OF_RAYS = ("directions", "lengths", "density")
_TENSORS = ("stated", "noise", "weights")
_OF_LAW = ("degrees", "skewness", "outliers", "width", "excess")
_OF_VARIANCES = ("coefficients", "lower", "upper", "degrees", "prior_degrees")
_CONSTANTS = ("nugget", "outliers", "stretch", "tails")


def learn_remainder(
    posterior: Posterior,
    plan: Plan,
    box: Grid,
    stars: Stars,
    validation: int,
    generator: torch.Generator,
) -> ResidualField:
    """Learn the covariance of structure below a plan's grids, about a map's mean.

    The map covers ``box``; beyond it the plan's grids have the densities of its faces.

    The map has not seen the last stars, ``validation`` in number: α and the noise are
    learnt on them, and then they are neighbours like the fitted ones. The generator
    puts them in a random order: catalogues are ordered on the sky.

    Raises `FloatingPointError` if the covariance is not positive definite.
    """
    ends = torch.as_tensor(stars.positions())
    model = posterior.model
    extinction = _mean(posterior, model.at(rays(plan, ends)).apply).double().cpu()
    density = _mean(posterior, model.at(PointValues(ends)).apply).double().cpu()
    least = least_density(extinction, ends.norm(dim=1))
    return learn_residual(
        rays_to(ends, extinction, least),
        (torch.as_tensor(stars.extinction) - extinction)[None],
        torch.as_tensor(stars.variance(0.0, plan.common_noise)),
        _validation(stars, validation, generator),
        distance_variance=(density * torch.as_tensor(stars.distance_std)) ** 2,
        cube=_cube(posterior, plan, box, least),
        subgrid=SubgridCovariance.of(plan.kernel, plan.build_kernel(), plan.grids),
        device=posterior.mean.device,
    )


def residual_about(
    known: ResidualField,
    posterior: Posterior,
    plan: Plan,
    stars: Stars,
    validation: int,
    generator: torch.Generator,
) -> ResidualField:
    """Return the residual of the same stars about samples, learnt again."""
    model = posterior.model.at(rays(plan, torch.as_tensor(stars.positions())))
    # In single precision: with millions of stars these are the largest of all arrays.
    residuals = torch.empty(len(posterior.samples), len(stars), dtype=torch.float32)
    for residual, sample in zip(residuals, posterior.samples, strict=True):
        found = model.apply(sample).double().cpu()
        residual.copy_(torch.as_tensor(stars.extinction) - found)
    held = _validation(stars, validation, generator)
    field = relearnt_on(replace(known, residuals=residuals), held)
    return replace(field, variances=variance_law(replace(posterior, residual=field)))


def variance_law(posterior: Posterior) -> VarianceLaw | None:
    """Learn the law of densities' variances at the stars of the residual.

    ``None`` with fewer samples or stars than it takes.
    """
    field, count = posterior.residual, len(posterior.samples)
    assert field is not None
    if count < FEWEST_SAMPLES or len(field.rays) < FEWEST_PLACES:
        return None
    some = slice(None, None, math.ceil(len(field.rays) / MOST_PLACES))
    ends = field.rays.directions[some] * field.rays.lengths[some, None]
    values, _ = posterior.sampled(PointValues(ends))
    # Antithetic pairs stay together.
    middle = 2 * (count // 4)
    halves = log_variance(values[:middle]), log_variance(values[middle : 2 * middle])
    return learn_variance_law(log_variance(values), halves, field.surroundings(ends))


def _validation(stars: Stars, count: int, generator: torch.Generator) -> Tensor:
    """Return the numbers of the last stars in a random order."""
    return len(stars) - count + torch.randperm(count, generator=generator)


def _mean(posterior: Posterior, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean of a function of ε over samples, or its value at the mode."""
    some = posterior.samples if len(posterior.samples) else posterior.mean[None]
    return sum(map(of, some[1:]), of(some[0])) / len(some)


def _cube(posterior: Posterior, plan: Plan, box: Grid, least: float) -> DensityCube:
    """Return the map's density at the grids' points, at least this [mag/pc]."""
    model, found = posterior.model, []
    assert isinstance(model, LogNormal)
    # Once: it takes a transform of the torus for each sample.
    density = _mean(posterior, model.density)
    faces = torch.tensor([box.lower, box.upper], dtype=torch.float64)
    every = torch.cat([grid.points() for grid in plan.grids]).clamp(*faces)
    # Eight weights of a point on every grid.
    for points in every.split(rows_within(1024)):
        weights = model.at(PointValues(points)).weights
        found.append(weights.matvec(density).double().cpu())
    return DensityCube(values=torch.cat(found).clamp_min(least), grids=plan.grids)


def residual_in_words(field: ResidualField) -> str:
    """Describe the learnt covariance in one line."""
    assert field.cube is not None
    assert field.subgrid is not None
    cuts = ", ".join(f"{cut:.3g}" for cut in field.subgrid.cuts)
    outliers = f"; {100 * field.outliers:.2g}% outliers" if field.has_outliers else ""
    tails = f"; tails of errors: Student-T, {field.tails:.2g} degrees of freedom"
    alphas = ", ".join(f"{alpha:.3g}" for alpha in field.weights.tolist())
    along = (
        f"residual: the prior below {cuts} pc, its variance times {alphas}; nugget "
        f"{field.nugget**0.5:.2g} mag"
    )
    return along + outliers + tails


def read_residual(folder: Path) -> ResidualField | None:
    """Return the residual of a run folder; ``None`` if it has none."""
    path = folder / RESIDUAL_FILE
    return residual_from(path.read_bytes(), str(path)) if path.is_file() else None


def residual_bytes(field: ResidualField) -> bytes:
    """Return a residual in the safetensors format, in single and half precision."""
    rays, tensors = field.rays, {"residuals": field.residuals.to(torch.float16)}
    kept = {name: getattr(rays, name) for name in _OF_RAYS}
    kept |= {name: getattr(field, name) for name in _TENSORS}
    tensors |= {name: value.to(torch.float32).clone() for name, value in kept.items()}
    constants = [getattr(field, name) for name in _CONSTANTS]
    cube = field.cube
    left = field.subgrid
    assert cube is not None
    assert left is not None
    tensors["cube"] = cube.values.to(torch.float32)
    places = [(grid.origin, grid.spacing, grid.shape) for grid in cube.grids]
    tensors["grids"] = torch.tensor(places, dtype=torch.float64)
    facts = {"version": str(VERSION), "kernel": left.kernel}
    numbers = [left.lengthscale, left.variance, *left.cuts]
    tensors["remainder"] = torch.tensor(numbers, dtype=torch.float64)
    tensors["bend"] = torch.tensor(left.bend, dtype=torch.float64)
    tensors["constants"] = torch.tensor(constants, dtype=torch.float64)
    if (stack := field.stack) is not None:
        kriging, about = stack.kriging, stack.kriging.field
        kept = {"observed": kriging.observed.density, "mean": about.rays.density}
        kept |= {name: getattr(about, name) for name in _TENSORS}
        tensors |= {
            f"kriging_{name}": value.to(torch.float32) for name, value in kept.items()
        }
        numbers = [kriging.count, kriging.floored, stack.gain, *stack.coefficients]
        numbers += [getattr(about, name) for name in _CONSTANTS]
        tensors["stack"] = torch.tensor(numbers, dtype=torch.float64)
    if (law := field.law) is not None:
        parts = law.centres, law.ends.ravel(), law.coefficients, law.slopes.ravel()
        numbers = np.concatenate([[getattr(law, n) for n in _OF_LAW], *parts])
        tensors["law"] = torch.from_numpy(numbers)
        facts["surveys"] = json.dumps(law.surveys)
    if field.density_weights is not None:
        tensors["density_weights"] = field.density_weights
    if (spread := field.variances) is not None:
        parts = (np.ravel(getattr(spread, name)) for name in _OF_VARIANCES)
        tensors["variances"] = torch.from_numpy(np.concatenate([*parts]))
    return save(tensors, facts)


def residual_from(
    data: bytes,
    source: str = "the residual of a fit",
    *,
    device: torch.device = CPU,
) -> ResidualField:
    """Return the residual of a file's bytes, to be evaluated on a device.

    Raises `InputError` if another version wrote the file, or its kernel is unknown; the
    message names the ``source``.
    """
    # A header of JSON follows its length in eight bytes.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = header.get("__metadata__", {})
    version, kernel = facts.get("version"), facts.get("kernel")
    if version not in _READ:
        found = "without a version" if version is None else f"of version {version}"
        raise InputError(
            f"{source} is {found}, expected version {VERSION}: another version of "
            "dustmap wrote it, fit again"
        )
    if kernel not in KERNELS:
        raise InputError(f"{source}: kernel {kernel!r}, expected one of {[*KERNELS]}")
    tensors = {
        name: value.to(torch.float32 if name == "residuals" else torch.float64)
        for name, value in load(data).items()
    }
    constants = zip(_CONSTANTS, tensors["constants"].tolist(), strict=True)
    grids = tuple(
        Grid(origin=tuple(origin), spacing=tuple(spacing), shape=tuple(map(int, shape)))
        for origin, spacing, shape in tensors["grids"].tolist()
    )
    lengthscale, variance, *cuts = tensors["remainder"].tolist()
    law = None
    if "law" in tensors:
        surveys = tuple(json.loads(facts["surveys"]))
        places = 5, 9, 13, 18 + len(surveys)
        numbers, *parts = np.split(tensors["law"].numpy(), places)
        centres, ends, coefficients, slopes = parts
        law = PredictiveLaw(
            coefficients=coefficients,
            centres=centres,
            slopes=slopes.reshape(-1, 10),
            ends=ends.reshape(2, 2),
            surveys=surveys,
            **dict(zip(_OF_LAW, numbers.tolist(), strict=True)),
        )
    variances = None
    if "variances" in tensors:
        *parts, degrees = tensors["variances"].split([4, 3, 3, 2])
        known: Any = [*parts, *degrees.tolist()]
        variances = VarianceLaw(**dict(zip(_OF_VARIANCES, known, strict=True)))
    rays = Rays(**{name: tensors[name] for name in _OF_RAYS})
    return ResidualField(
        rays=rays,
        cube=DensityCube(values=tensors["cube"], grids=grids),
        subgrid=SubgridCovariance(
            kernel=kernel,
            lengthscale=lengthscale,
            variance=variance,
            cuts=tuple(cuts),
            bend=tuple(tensors["bend"].tolist()),
        ),
        residuals=tensors["residuals"],
        law=law,
        stack=_stack(rays, tensors, device),
        variances=variances,
        density_weights=tensors.get("density_weights"),
        device=device,
        **{name: tensors[name] for name in _TENSORS},
        **dict(constants),
    )


def _stack(
    rays: Rays, tensors: dict[str, Tensor], device: torch.device
) -> StackedKriging | None:
    """Return the stack of stars on these rays; ``None`` if there is none."""
    if "stack" not in tensors:
        return None
    count, floored, gain, *rest = tensors["stack"].tolist()
    observed, mean = tensors["kriging_observed"], tensors["kriging_mean"]
    field = ResidualField(
        rays=replace(rays, density=mean),
        residuals=((observed - mean) * rays.lengths)[None],
        device=device,
        **{name: tensors[f"kriging_{name}"] for name in _TENSORS},
        **dict(zip(_CONSTANTS, rest[3:], strict=True)),
    )
    kriging = LocalMeanKriging(
        observed=replace(rays, density=observed),
        field=field,
        count=int(count),
        floored=int(floored),
    )
    return StackedKriging(kriging=kriging, coefficients=np.array(rest[:3]), gain=gain)
