"""The residual's covariance, as rows that the map has not seen teach it.

Form, neighbours, outliers and weights are those with the best log score; the errors of
all held-out rows then calibrate its variances and tails.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.field import COUNT, ResidualField
from dustmap.residual.learning import learn_weights, tail_degrees, variance_scale
from dustmap.residual.neighbourhoods import Neighbourhoods
from dustmap.residual.neighbours import nearest
from dustmap.residual.rays import DensityCube, Rays

# Neighbours of a row while the covariance is learnt, and in trials.
_LEARNING_COUNT, _FEW = 30, 20
# Stretches of angles and powers of `DensityCube` that are tried.
_STRETCHES, _POWERS = (5.0, 10.0, 20.0), (1.0, 0.5)
# Held-out rows that teach the covariance, and that find the first outliers; all of them
# calibrate its errors.
_LEARNING, _FIRST = 1200, 400
# Held-out rows within a grid that calibrate it by themselves.
_OF_A_GRID = 200
# The part of outlying rows that calls for weighing them.
_FEW_OUTLIERS = 2e-3


def learn_residual(
    rays: Rays,
    residuals: Float[Tensor, "s n"],
    noise: Float[Tensor, " n"],
    held: Int[Tensor, " m"],
    *,
    placing: Float[Tensor, " n"] | None = None,
    stretches: tuple[float, ...] = _STRETCHES,
    cube: DensityCube | None = None,
) -> ResidualField:
    r"""The residual whose covariance predicts held-out rows best.

    ``held`` are the rows that the map has not seen, in random order: the first of them
    teach. The others are their neighbours while the covariance is learnt. Errors of
    distances make noise of the density at the star: ``placing`` [mag²] is their
    variance for the map's density :math:`\bar\rho`, and
    :math:`\langle\rho^2\rangle = \bar\rho^2 + a^2 \sum_j w_j`. With the mean map's
    ``cube`` the covariance is that along rays, by the amplitude of the best log score.
    Where more than two rows in a thousand are outliers, these count less if held-out
    rows are then predicted better: fewer cannot be told from rays through compact
    clouds. Outliers and errors of distances call for the covariance to be learnt anew.

    Raises
    ------
    FloatingPointError
        If no covariance is positive definite.
    """
    placing = torch.zeros_like(noise) if placing is None else placing
    start = ResidualField(
        rays=rays if cube is None else cube.along(rays),
        residuals=residuals,
        stated=noise + placing,
        noise=noise + placing,
        weights=noise.new_zeros(0),
        nugget=0.0,
        scales=noise.new_ones(1),
        outliers=0.0,
        stretch=stretches[len(stretches) // 2],
        cube=cube,
    )
    known = held[:_LEARNING]
    # First without trials, which outliers would decide.
    field = _best([start], held[:_FIRST])
    weighed = _weighed(field, noise, placing)
    tells = bool((weighed.noise > weighed.stated).any())
    if tells:
        # Where the density has spikes, rays through them look like outliers.
        plain = replace(weighed, noise=weighed.stated)
        field = _best([plain, weighed], known, _FEW)
        tells = bool((field.noise > field.stated).any())
    if len(stretches) > 1:
        tried = [replace(field, stretch=stretch) for stretch in stretches]
        field = _best(tried, known, _FEW)
    field = _weighed(_best(_forms(field), known), noise, placing, outliers=tells)
    if tells or bool(placing.any()):
        field = _best([field], known)
        field = _weighed(field, noise, placing, outliers=tells)
    # Without any weight it does not matter which neighbours there are.
    alone = _learnt(field, known, 1, shared=False)
    return _calibrated(replace(field, gain=field.gain - alone.gain), held)


def relearn_residual(
    known: ResidualField,
    rays: Rays,
    residuals: Float[Tensor, "s n"],
    noise: Float[Tensor, " n"],
    held: Int[Tensor, " m"],
    *,
    placing: Float[Tensor, " n"],
    cube: DensityCube,
) -> ResidualField:
    """The residual of the same stars about another map, as that of `learn_residual`.

    The form, the neighbours and the outliers are known.

    Raises
    ------
    FloatingPointError
        If the covariance is not positive definite.
    """
    assert known.cube is not None
    about = replace(cube, power=known.cube.power)
    raised = known.noise / known.stated
    field = replace(
        known,
        rays=about.along(rays),
        residuals=residuals,
        stated=noise + placing,
        noise=raised * (noise + placing),
        cube=about,
    )
    field = _learnt(field, held[:_LEARNING], _LEARNING_COUNT)
    field = _weighed(field, noise, placing, outliers=bool((raised > 1).any()))
    return _calibrated(replace(field, gain=known.gain), held)


def _forms(field: ResidualField) -> list[ResidualField]:
    """The covariance along rays with both amplitudes; else the free spectrum alone.

    Beside a map the free spectrum is not tried. As noise of a real field's stars it
    made errors 5% larger than the covariance along rays did with the same prior, though
    held-out residuals of the first map preferred it by little.
    """
    if field.cube is None:
        return [field]
    cubes = [replace(field.cube, power=power) for power in _POWERS]
    return [replace(field, cube=c, rays=c.along(field.rays)) for c in cubes]


def _weighed(
    field: ResidualField, noise: Tensor, placing: Tensor, *, outliers: bool = True
) -> ResidualField:
    """With the noise of this variance, and outliers weighed if more than a few."""
    second = torch.ones_like(noise)
    if field.cube is not None:
        second = field.cube.relative_amplitude(field.rays) ** 2
    stated = noise + placing * (1 + float(field.weights.sum()) * second)
    raised = (field.noise / field.stated).clamp_min(1.0)
    if not outliers or field.outliers < _FEW_OUTLIERS:
        return replace(field, stated=stated, noise=stated)
    first = bool((raised == 1).all())
    field = replace(field, stated=stated, noise=raised * stated)
    for _ in range(1 + first):
        field = field.with_outliers_weighed(field.outliers)
    return field


def _best(
    fields: list[ResidualField], held: Tensor, count: int = _LEARNING_COUNT
) -> ResidualField:
    """Each with the covariance that held-out rows teach; that of the best score.

    A covariance that is not positive definite has no score.

    Raises
    ------
    FloatingPointError
        If none has a covariance that is positive definite.
    """
    learnt, failed = [], None
    for field in fields:
        try:
            learnt.append(_learnt(field, held, count))
        except FloatingPointError as error:
            failed = error
    if failed is not None and not learnt:
        raise failed
    return max(learnt, key=lambda found: found.gain)


def _learnt(
    field: ResidualField, held: Tensor, count: int, *, shared: bool = True
) -> ResidualField:
    """With the covariance that held-out rows teach; ``gain`` is its whole score.

    It is nothing but the nugget unless rows share something.
    """
    near = _near_unseen(field.rays, held, field.stretch, count)
    hoods = Neighbourhoods.of(field.form, field.rays, field.rays[held], near)
    mean = field.residuals.mean(dim=0)
    learnt = learn_weights(
        hoods,
        mean,
        field.noise,
        mean[held],
        field.stated[held],
        shared=shared,
        known=field.weights,
    )
    return replace(
        field,
        weights=learnt.weights,
        nugget=learnt.nugget,
        outliers=learnt.outliers,
        gain=learnt.score * len(held),
    )


def _near_unseen(rays: Rays, held: Tensor, stretch: float, count: int) -> Tensor:
    """The nearest rows to held-out ones among the others."""
    seen = torch.ones(len(rays), dtype=torch.bool)
    seen[held] = False
    known, points = torch.nonzero(seen)[:, 0], rays.coordinates(stretch)
    return known[nearest(points[known], points[held], count)]


def _calibrated(field: ResidualField, held: Tensor) -> ResidualField:
    """With the scales and the tails of the errors of held-out rows."""
    near = _near_unseen(field.rays, held, field.stretch, COUNT)
    found = field.krige(field.rays[held], near)
    errors = field.residuals[:, held] - found.mean(field.residuals)
    # A single prediction has no spread.
    spread = errors.var(dim=0, correction=min(1, len(errors) - 1))
    mean, variance = errors.mean(dim=0), found.variance + spread
    # The nugget is no part of the variances, and the scale covers it.
    stated, outliers = field.stated[held], field.outliers
    scales = field.scales.new_full(
        (1 if field.cube is None else len(field.cube.grids),),
        variance_scale(mean, variance, stated, outliers),
    )
    field = replace(field, scales=scales.clone())
    if field.cube is not None and len(scales) > 1:
        level = field.cube.level_at(field.rays.lengths[held])
        for number in range(len(scales)):
            own = level == number
            if int(own.sum()) >= _OF_A_GRID:
                rows = (mean[own], variance[own], stated[own])
                field.scales[number] = variance_scale(*rows, outliers)
    calibrated = field.scale_at(field.rays.lengths[held]) * variance
    tails = tail_degrees(mean, calibrated, stated, outliers)
    return replace(field, tails=tails)
