r"""The residual's covariance, learnt from held-out rows.

Form, neighbours, outliers and weights maximise the log score; the errors of all
held-out rows determine the tails (`calibrated_on`).

Without a grid (`LocalMeanKriging`) the map is the mean density of a place's nearest
stars, :math:`g = \sum_n y_n / \sum_n d_n`, times the distance; a `ResidualField` models
the residuals. The number of stars of the mean, and the stretch of angles in the
neighbour search, maximise the log score of some held-out rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.memory import rows_within
from dustmap.residual.corrections import DEGREES
from dustmap.residual.covariance import CPU, Rays, SubgridCovariance
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import NEIGHBOURS, ResidualField, least_density
from dustmap.residual.kriging import Neighbourhoods
from dustmap.residual.neighbours import nearest, without_self
from dustmap.residual.scoring import learn_weights, tail_degrees

Values = Float[Tensor, " n"]
"""A number for every row."""
# Neighbours of a row in trials.
_TRIAL_NEIGHBOURS = 20
# Number of rows above which only rows near the held-out ones are used.
_MANY = 200_000
# Trial numbers of stars in a local mean, the stretch in the search for them, and the
# largest number of stars with a mean of their own.
_MEANS = (100, 300)
_MEAN_STRETCH = 10.0
_MOST_MEANS = 60_000


def learn_residual(
    rays: Rays,
    residuals: Float[Tensor, "s n"],
    noise: Values,
    held: Int[Tensor, " m"],
    *,
    distance_variance: Values | None = None,
    stretch: float = 20.0,
    cube: DensityCube | None = None,
    subgrid: SubgridCovariance | None = None,
    device: torch.device = CPU,
) -> ResidualField:
    r"""Learn the residual whose covariance predicts held-out rows best.

    ``held`` holds the numbers of the held-out rows, in random order, which score the
    covariance; all other rows may be their neighbours. A distance error
    :math:`\sigma_d` adds the variance :math:`\langle\rho^2\rangle \sigma_d^2 =
    \bar\rho^2 (1 + \mathrm{var}\,\delta) \sigma_d^2`, of which ``distance_variance``
    is :math:`\bar\rho^2 \sigma_d^2` [mag²] with the map's density at the star. With the
    mean map's ``cube`` the covariance is the prior's ``subgrid`` part along rays, times
    α of every grid; without held-out rows α is one. Of more than 200,000 rows only rows
    near the held-out rows are used. Outliers, if they are more than 0.2% of the
    rows, are down-weighted where this improves the score; fewer cannot be distinguished
    from rays through compact clouds. With outliers or distance errors the covariance is
    learnt a second time.

    Raises `FloatingPointError` if no covariance is positive definite.
    """
    if distance_variance is None:
        distance_variance = torch.zeros_like(noise)
    start = _unlearnt(rays, residuals, noise + distance_variance, stretch, device)
    if cube is not None:
        one = noise.new_ones(len(cube.grids))
        start = replace(start, cube=cube, subgrid=subgrid, weights=one)
    if not len(held):
        return _with_noise(start, noise, distance_variance, outliers=False)
    if len(rays) <= _MANY:
        return _searched(start, held, noise, distance_variance)
    # The known rows come first.
    points = rays.coordinates(stretch)
    # Each of them brings 45 neighbours.
    near = nearest(points, points[held], 45).unique()
    few = torch.cat([held, near[~torch.isin(near, held)]])
    numbers, given = torch.arange(len(held)), (noise[few], distance_variance[few])
    learnt = _searched(start.select(few), numbers, *given)
    own = ("rays", "residuals", "stated", "noise")
    field = replace(learnt, **{name: getattr(start, name) for name in own})
    return _with_noise(field, noise, distance_variance, outliers=learnt.has_outliers)


def _searched(
    start: ResidualField,
    known: Int[Tensor, " m"],
    noise: Values,
    distance_variance: Values,
) -> ResidualField:
    """Find outliers and weights that predict the ``known`` rows best."""
    # Find outliers, from 400 rows, before the trials, whose result they would dominate.
    field = _best([start], known[:400])
    down_weighted = _with_noise(field, noise, distance_variance)
    has_outliers = down_weighted.has_outliers
    if has_outliers:
        # Rays through spikes of the density look like outliers.
        plain = replace(down_weighted, noise=down_weighted.stated)
        field = _best([plain, down_weighted], known, _TRIAL_NEIGHBOURS)
        has_outliers = field.has_outliers
    rounds = 2 if has_outliers or bool(distance_variance.any()) else 1
    for _ in range(rounds):
        field = _best([field], known)
        field = _with_noise(field, noise, distance_variance, outliers=has_outliers)
    return field


def _unlearnt(
    rays: Rays,
    residuals: Float[Tensor, "s n"],
    noise: Values,
    stretch: float,
    device: torch.device,
) -> ResidualField:
    """Return a field whose covariance is not yet learnt."""
    return ResidualField(
        rays=rays,
        residuals=residuals,
        stated=noise,
        noise=noise,
        weights=noise.new_zeros(0),
        stretch=stretch,
        device=device,
    )


def _with_noise(
    field: ResidualField,
    noise: Tensor,
    distance_variance: Tensor,
    *,
    outliers: bool = True,
) -> ResidualField:
    """Set the noise variance, and down-weight outliers if there are enough."""
    relative = field.weights.sum()
    if field.cube is not None and field.subgrid is not None:
        variances = field.weights * torch.from_numpy(field.subgrid.variances)
        relative = variances[field.cube.level_at(field.rays.lengths)]
    stated = noise + distance_variance * (1 + relative)
    raised = (field.noise / field.stated).clamp_min(1.0)
    if not outliers or field.outliers < 0.002:
        return replace(field, stated=stated, noise=stated)
    first = bool((raised == 1).all())
    field = replace(field, stated=stated, noise=raised * stated)
    return field.with_outliers_down_weighted(field.outliers, rounds=1 + first)


def _best(fields: list[ResidualField], held: Tensor, count: int = 30) -> ResidualField:
    """Learn each field's covariance from ``held`` rows; return the best field.

    A row is predicted from ``count`` neighbours. Fields whose covariance is not
    positive definite are skipped.

    Raises `FloatingPointError` if no covariance is positive definite.
    """
    learnt, failed = [], None
    for field in fields:
        try:
            learnt.append(_learnt(field, held, count))
        except FloatingPointError as error:
            failed = error
    if failed is not None and not learnt:
        raise failed
    return max(learnt, key=lambda found: found.score)


def _learnt(field: ResidualField, held: Tensor, count: int) -> ResidualField:
    """Learn the covariance from held-out rows; ``score`` is their total log score."""
    near = _near_unseen(field.rays, held, field.stretch, count)
    hoods = Neighbourhoods.of(field.covariance, field.rays, field.rays[held], near)
    mean = field.residuals.mean(dim=0)
    learnt = learn_weights(
        hoods,
        mean,
        field.noise,
        mean[held],
        field.stated[held],
        known=field.weights,
        expected=None if field.subgrid is None else 1.0,
    )
    return replace(field, **learnt._asdict())


def _near_unseen(rays: Rays, held: Tensor, stretch: float, count: int) -> Tensor:
    """Return the rows nearest to each held-out row that are not held out."""
    seen = torch.ones(len(rays), dtype=torch.bool)
    seen[held] = False
    known, points = torch.nonzero(seen)[:, 0], rays.coordinates(stretch)
    return known[nearest(points[known], points[held], count)]


def relearnt_on(field: ResidualField, held: Tensor) -> ResidualField:
    """Learn α again where the residuals are those of the last map, and calibrate it.

    An earlier map of fewer stars leaves power in its residuals that the last map
    resolves: with 10 million stars of a simulated sky α falls from 0.71 to 0.45. It is
    right for extinctions between dense stars; for densities, which depend on smaller
    structure, intervals would be too narrow: their variance keeps the earlier α.
    """
    if not len(held):
        return calibrated_on(field, held)
    about = replace(field, residuals=field.residuals.mean(dim=0, keepdim=True))
    found = _best([about], held)
    field = replace(found, residuals=field.residuals, density_weights=field.weights)
    return calibrated_on(field, held)


def calibrated_on(field: ResidualField, held: Tensor) -> ResidualField:
    """Set the tails from the errors of held-out rows; without any, to `DEGREES`."""
    if not len(held):
        return replace(field, tails=DEGREES)
    near = _near_unseen(field.rays, held, field.stretch, NEIGHBOURS)
    found = field.krige(field.rays[held], near)
    errors = field.residuals[:, held] - found.mean(field.residuals)
    # The spread of a single prediction is zero.
    spread = errors.var(dim=0, correction=min(1, len(errors) - 1))
    rows = errors.mean(dim=0), found.variance + spread, field.stated[held]
    tails = tail_degrees(*rows[:2], rows[2] + field.nugget, field.outliers)
    return replace(field, tails=tails)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMeanKriging:
    """Kriging about a local mean density.

    Parameters
    ----------
    observed
        Rays of the stars, whose density is extinction over distance [mag/pc].
    field
        Residual about the local mean.
    count
        Number of stars of a local mean.
    floored
        Number of stars whose local mean was raised to `least_density`.
    """

    observed: Rays
    field: ResidualField
    count: int
    floored: int

    def renewed(
        self, observed: Rays, noise: Values, distance_std: Values
    ) -> LocalMeanKriging:
        """Return the same kriging for other measurements of the same stars."""
        mean = local_means(observed, None, (self.count,))[:, 0]
        least = least_density(observed.density * observed.lengths, observed.lengths)
        raised = mean.clamp_min(least)
        (rays, residuals), own = _about(observed, raised), self.field
        field = replace(own, rays=rays, residuals=residuals, noise=own.stated)
        added = (raised * distance_std) ** 2
        field = _with_noise(field, noise, added, outliers=own.has_outliers)
        floored = int((mean < least).sum())
        return replace(self, observed=observed, field=field, floored=floored)

    def without_last(self, count: int) -> LocalMeanKriging:
        """Return the same kriging without the last ``count`` stars."""
        rows = torch.arange(len(self.observed) - count)
        observed, field = self.observed[rows], self.field.select(rows)
        return replace(self, observed=observed, field=field)

    def predict(self, places: Rays) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Return noise-free extinctions of places [mag] and their variances [mag²].

        The densities of ``places`` are ignored.
        """
        mean = local_means(self.observed, places, (self.count,))[:, 0]
        extinction = mean.clamp_min(self.field.darkest) * places.lengths
        ends = places.directions * places.lengths[:, None]
        found, variance = self.field.correct(ends, extinction[None])
        return found[0], variance[0]


def learn_local_mean_kriging(
    observed: Rays,
    noise: Values,
    distance_std: Values,
    held: Int[Tensor, " m"],
    device: torch.device = CPU,
) -> LocalMeanKriging:
    """Learn the kriging that predicts the rows with the numbers ``held`` best.

    Parameters
    ----------
    observed
        Rays whose density is extinction over distance [mag/pc].
    noise
        Variances of the extinctions [mag²].
    distance_std
        Standard deviations of the distances [pc], which add noise in proportion to the
        local mean density.
    """
    extinction = observed.density * observed.lengths
    least = least_density(extinction, observed.lengths)
    means = local_means(observed, None, _MEANS)
    trials = []
    for mean in means.T.clamp_min(least):
        variance = noise + (mean * distance_std) ** 2
        about = _about(observed, mean)
        trials.append(_unlearnt(*about, variance, _MEAN_STRETCH, device))

    def learnt(trial: ResidualField) -> ResidualField:
        return _learnt(trial, held[:300], _TRIAL_NEIGHBOURS)

    first = learnt(trials[0])
    # The other searches start from the weights of the first.
    trials = [replace(trial, weights=first.weights) for trial in trials]
    found = [first, *map(learnt, trials[1:])]
    best = max(range(len(found)), key=lambda number: found[number].score)
    stretched = [replace(trials[best], stretch=each) for each in (5.0, 20.0, 40.0)]
    candidates = [found[best], *map(learnt, stretched)]
    chosen = max(candidates, key=lambda trial: trial.score)
    field = learn_residual(
        chosen.rays,
        chosen.residuals,
        noise,
        held,
        distance_variance=(means[:, best].clamp_min(least) * distance_std) ** 2,
        stretch=chosen.stretch,
        device=device,
    )
    field = calibrated_on(field, held)
    floored = int((means[:, best] < least).sum())
    return LocalMeanKriging(
        observed=observed, field=field, count=_MEANS[best], floored=floored
    )


def _about(observed: Rays, mean: Values) -> tuple[Rays, Float[Tensor, "1 n"]]:
    """Return rays of mean densities [mag/pc], and the residuals about them [mag]."""
    residuals = (observed.density - mean) * observed.lengths
    return replace(observed, density=mean), residuals[None]


def near_rays(
    observed: Rays, own: Int[Tensor, " k"], places: Rays, count: int
) -> Int[Tensor, " u"]:
    """Return sorted numbers of the ``count`` rays nearest to each ray or place.

    ``own`` holds numbers of rays.
    """
    points = observed.coordinates(_MEAN_STRETCH)
    around = torch.cat([points[own], places.coordinates(_MEAN_STRETCH)])
    return nearest(points, around, count).unique()


def local_means(
    observed: Rays, places: Rays | None, counts: tuple[int, ...]
) -> Float[Tensor, "m c"]:
    """Return mean densities [mag/pc] of the nearest stars (all if there are fewer).

    The stars are around each of ``places``; with ``None``, around every star, without
    the star itself. Of more than 60,000 stars an even subset has means of its own; the
    others take the mean of the nearest of these, which may include them.
    """
    points = observed.coordinates(_MEAN_STRETCH)
    extinction = observed.density * observed.lengths
    around = points if places is None else places.coordinates(_MEAN_STRETCH)
    most = max(counts) + (places is None)
    own = torch.arange(len(around))
    if places is None and len(own) > _MOST_MEANS:
        own = torch.linspace(0, len(own) - 1, _MOST_MEANS).long()
    found = []
    # Numbers, extinctions and lengths of neighbours, and two sums of them.
    for rows in own.split(rows_within(40 * most)):
        near = nearest(points, around[rows], most)
        if places is None:
            near = without_self(near, rows)
        sums = [part[near].cumsum(1) for part in (extinction, observed.lengths)]
        last = [min(count, near.shape[1]) - 1 for count in counts]
        found.append(sums[0][:, last] / sums[1][:, last])
    means = torch.cat(found)
    if len(own) == len(around):
        return means
    return means[nearest(points[own], points, 1)[:, 0]]
