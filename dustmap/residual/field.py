r"""What neighbouring stars share beyond the map, at any place.

A grid predicts :math:`W\rho`; the residuals :math:`r = y - W\rho` of stars are
correlated where sight lines pass the same structure below the grid. At a new place the
sample s has

.. math::
   E_s = (W \rho_s)_* + c^\top (C + D)^{-1} (y - W \rho_s), \qquad
   v = C_{**} - c^\top (C + D)^{-1} c ,

over the nearest stars, so that map and residual vary together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.residual.along_ray import AlongRay
from dustmap.residual.compiled_kriging import krige_rays
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import Kriging, Neighbourhoods
from dustmap.residual.learning import OUTLYING, learn_weights, variance_scale
from dustmap.residual.neighbours import RowIndex, nearest, without_self
from dustmap.residual.rays import DensityCube, Rays

# Neighbours of a place, and of a row while the covariance is learnt.
_COUNT, _LEARNING_COUNT = 64, 30
# Neighbours of rows in trials, and of every star when outliers are weighed.
_FEW = 20
# Stretches of angles and powers of `DensityCube` that are tried.
_STRETCHES, _POWERS = (5.0, 10.0, 20.0), (1.0, 0.5)
# Held-out rows that teach the covariance, and that find the first outliers; all of them
# calibrate its errors.
_LEARNING, _FIRST = 1200, 400
# Densities of rays are raised to at least this fraction of the mean.
_DARKEST = 0.02
# In steps of the grid: longer structure belongs to the map. A residual with scales of
# 1.5 steps took it over: of 2,500 stars' extinctions errors were 0.74 instead of 0.29.
_LONGEST = 0.75
# The part of outlying rows that calls for weighing them.
_FEW_OUTLIERS = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualField:
    """Residuals of the fitted stars from every sample, and their covariance.

    Parameters
    ----------
    rays
        Of the stars, with the mean map's density.
    residuals
        From every sample's prediction [mag].
    stated, noise
        Variance of each star's extinction, and the same with that of outliers raised
        [mag²].
    weights, nugget, outliers
        Of the covariance; see `Learnt`.
    scale
        The factor on predicted variances, those of samples included, with which 68% of
        the stars that the map had not seen lie within one standard deviation.
    stretch
        Of angles against logarithms of distance, where neighbours are sought.
    cube
        The mean map's density, where the covariance is that along rays; the rays have
        its profiles. ``None`` for the free spectrum.
    longest
        Scales [pc] above this belong to the map, and have no weight.
    gain
        Of the log score of the rows that teach, over that of the map alone [nats].
    """

    rays: Rays
    residuals: Float[Tensor, "s n"]
    stated: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    weights: Float[Tensor, " j"]
    nugget: float
    scale: float
    outliers: float
    stretch: float
    cube: DensityCube | None = None
    longest: float = math.inf
    gain: float = math.nan

    @property
    def form(self) -> FreeSpectrum | AlongRay:
        """That of the covariance."""
        if self.cube is None:
            return FreeSpectrum()
        return AlongRay(edges=self.cube.edges())

    @property
    def darkest(self) -> float:
        """The least density of a ray [mag/pc]; the same whatever places are asked."""
        return least_density(self.rays.density * self.rays.lengths, self.rays.lengths)

    def with_outliers_weighed(self, outliers: float) -> ResidualField:
        r"""The noise of outliers raised, by what their neighbours predict.

        A star's deviation z from the prediction without itself is a standard normal or,
        in this part of the stars, ten times as wide. Its precision is the mean over
        these two. Neighbours count with their present noise: outliers among them that
        are not weighed yet make outliers of others, which a second call mends.
        """
        points, residuals = self.rays.coordinates(self.stretch), self.residuals.mean(0)
        near = without_self(nearest(points, points, _FEW + 1))
        found = self.krige(self.rays, near)
        variance = found.variance + self.nugget + self.stated
        squared = (residuals - found.mean(residuals)) ** 2 / variance
        odds = (squared / 2 * (1 - OUTLYING**-2)).clamp_max(50).exp()
        odds = odds * outliers / (1 - outliers) / OUTLYING
        outlying = odds / (1 + odds)
        own = self.stated + self.nugget
        wide = own + (OUTLYING**2 - 1) * variance
        precision = (1 - outlying) / own + outlying / wide
        return replace(self, noise=1 / precision - self.nugget)

    def correct(
        self,
        ends: Float[Tensor, "m 3"],
        extinctions: Float[Tensor, "s m"],
        count: int = _COUNT,
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
        """Every sample's extinctions to places [pc], corrected, and ``v`` [mag²].

        From the ``count`` stars nearest to the star nearest to each place.
        """
        found = self._krige_near(self.places(ends, extinctions.mean(dim=0)), count)
        corrected = added(self.calibrated(extinctions), self.shared(found))
        return corrected, self.scale * found.variance

    def calibrated(self, values: Float[Tensor, "s m"]) -> Float[Tensor, "s m"]:
        """Every sample's positive values with the spread times ``√scale``."""
        values = values.to(torch.float64)
        mean = values.mean(dim=0)
        aside = self.scale**0.5 * (values - mean)
        return mean + aside if self.scale <= 1 else added(mean, aside)

    def shared(self, found: Kriging) -> Float[Tensor, "s m"]:
        """What every sample's residuals predict, with the spread times ``√scale``."""
        change = found.mean(self.residuals)
        mean = change.mean(dim=0)
        return mean + self.scale**0.5 * (change - mean)

    def places(
        self, ends: Float[Tensor, "m 3"], extinction: Float[Tensor, " m"]
    ) -> Rays:
        """Rays to places [pc] as the covariance needs them."""
        rays = rays_to(ends, extinction, self.darkest)
        return rays if self.cube is None else self.cube.along(rays)

    def correct_density(
        self, points: Float[Tensor, "m 3"], densities: Float[Tensor, "s m"]
    ) -> tuple[Float[Tensor, "s m"], Float[Tensor, "s m"]]:
        r"""Every sample's densities at points [pc], corrected, and their variances.

        The residual of the density is :math:`\rho_s(x) (a / \bar\rho)(x) \delta(x)`
        with the amplitude a of `DensityCube` over the mean map's density, and the
        relative density :math:`\delta` of variance
        :math:`\sum_j w_j`; its covariance with the extinction of a star is that of
        :mod:`dustmap.residual.compiled_covariance`.
        """
        assert self.cube is not None
        nowhere = torch.zeros(len(points), dtype=torch.float64)
        places = rays_to(points, nowhere, self.darkest)
        found = self._krige_near(places, _COUNT, points=True)
        densities = self.calibrated(densities)
        amplitude = densities * self.cube.relative_amplitude(places)
        corrected = added(densities, amplitude * self.shared(found))
        # What is left is in proportion to the amplitude of the corrected density.
        left = amplitude * (corrected / densities.clamp_min(1e-300)) ** self.cube.power
        return corrected, self.scale * left**2 * found.variance

    def _krige_near(self, places: Rays, count: int, *, points: bool = False) -> Kriging:
        """Places from the neighbours of the star nearest to each.

        Cubes and maps of the sky have many places of one star.
        """
        stars = self.rays.coordinates(self.stretch)
        index = RowIndex.of(stars, stars.new_ones(1))
        own = index.nearest(places.coordinates(self.stretch), 1)[:, 0]
        found, blocks = own.unique(return_inverse=True)
        near = index.nearest(stars[found], count)
        return self.krige(places, near, blocks=blocks, points=points)

    def krige(self, places: Rays, neighbours: Tensor, **options: Any) -> Kriging:
        """Places from their neighbours among the stars."""
        noise = self.noise + self.nugget
        return krige_rays(
            self.form, self.weights, self.rays, noise, places, neighbours, **options
        )


def added(
    extinction: Float[Tensor, "s m"], change: Float[Tensor, "s m"]
) -> Float[Tensor, "s m"]:
    """The sum, kept positive: changes that take more than half act exponentially.

    ``E + c`` where ``c ≥ −E/2``, else ``E/2 · exp(1 + 2c/E)``.
    """
    half = extinction / 2
    bounded = half * (1 + change / half.clamp_min(1e-300)).clamp_max(0.0).exp()
    return torch.where(change >= -half, extinction + change, bounded)


def least_density(
    extinction: Float[Tensor, " n"], lengths: Float[Tensor, " n"]
) -> float:
    """The density [mag/pc] below which rays count as no darker, of the stars' rays."""
    return _DARKEST * float(extinction.clamp_min(0.0).sum() / lengths.sum())


def rays_to(
    ends: Float[Tensor, "n 3"], extinction: Float[Tensor, " n"], least: float
) -> Rays:
    """Rays from the observer to places [pc] where the map has these extinctions."""
    lengths = torch.linalg.vector_norm(ends, dim=-1)
    safe = lengths.clamp_min(1e-9)
    return Rays(
        directions=ends / safe[:, None],
        lengths=lengths,
        density=(extinction / safe).clamp_min(least),
    )


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
        scale=1.0,
        outliers=0.0,
        stretch=stretches[len(stretches) // 2],
        cube=cube,
        longest=math.inf if cube is None else _LONGEST * min(cube.spacing),
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
    alone = _learnt(replace(field, longest=0.0), known, 1)
    return replace(field, gain=field.gain - alone.gain, scale=_scale(field, held))


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
    about = None if known.cube is None else replace(cube, power=known.cube.power)
    raised = known.noise / known.stated
    field = replace(
        known,
        rays=rays if about is None else about.along(rays),
        residuals=residuals,
        stated=noise + placing,
        noise=raised * (noise + placing),
        cube=about,
    )
    field = _learnt(field, held[:_LEARNING], _LEARNING_COUNT)
    field = _weighed(field, noise, placing, outliers=bool((raised > 1).any()))
    return replace(field, gain=known.gain, scale=_scale(field, held))


def _forms(field: ResidualField) -> list[ResidualField]:
    """The covariance along rays with both amplitudes; else the free spectrum alone.

    Beside a map the free spectrum is not tried: as noise of a real field's stars it
    made errors of 0.307 mag where the covariance along rays made 0.290, though held-out
    residuals of the first map preferred it by little.
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


def _learnt(field: ResidualField, held: Tensor, count: int) -> ResidualField:
    """With the covariance that held-out rows teach; ``gain`` is its whole score."""
    near = _near_unseen(field.rays, held, field.stretch, count)
    hoods = Neighbourhoods.of(field.form, field.rays, field.rays[held], near)
    mean, scales = field.residuals.mean(dim=0), torch.tensor(field.form.lengthscales)
    learnt = learn_weights(
        hoods,
        mean,
        field.noise,
        mean[held],
        field.stated[held],
        scales <= field.longest,
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


def _scale(field: ResidualField, held: Tensor) -> float:
    """The factor on variances that calibrates held-out rows; see `ResidualField`.

    The factor covers the nugget, which is no part of the variances.
    """
    near = _near_unseen(field.rays, held, field.stretch, _COUNT)
    found = field.krige(field.rays[held], near)
    errors = field.residuals[:, held] - found.mean(field.residuals)
    # A single prediction has no spread.
    spread = errors.var(dim=0, correction=min(1, len(errors) - 1))
    mean, variance = errors.mean(dim=0), found.variance + spread
    return variance_scale(mean, variance, field.stated[held], field.outliers)
