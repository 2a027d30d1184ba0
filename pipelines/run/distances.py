r"""Distances of stars from their catalogue's distances, extinctions and a map.

With the map's extinction :math:`E(d)` along the sight line of a star, and its standard
deviation :math:`s(d)`,

.. math::
   p(d) \propto N(d \mid d_0, \sigma_d^2) \left[(1 - q)\, N(y \mid E(d), S^2)
       + q\, N(y \mid E(d), (10 S)^2)\right], \qquad S^2 = s^2(d) + \sigma_y^2 ,

where q is the fraction of outliers of the residual, at least 0.001. No map is fitted to
these distances.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import norm

from dustmap.memory import row_blocks
from dustmap.residual.surveys import SurveyLaw
from dustmap.tails import OUTLIER_FACTOR
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars
from pipelines.run.folder import Run
from pipelines.run.held_out import measured_columns
from pipelines.run.predict import predict_columns
from pipelines.run.surveys import calibrated


def distance_columns(run: Run, stars: Stars) -> dict[str, np.ndarray]:
    """Return mean and standard deviation of each star's distance [pc].

    They are ``posterior_distance`` and ``posterior_distance_std``; ``outlier`` is the
    probability that the extinction is an outlier. All are NaN for stars outside the
    box. Along a line that leaves the box the extinction rises no more. Columns of
    `measured_columns` follow, for stars that the fit has not seen.

    Raises `InputError` if the stars lack extinctions or errors of distances, or the run
    samples.
    """
    if stars.extinction is None or not stars.distance_std.any():
        raise InputError(
            "posterior distances need extinctions and errors of the distances: give a "
            "table of `dustmap ingest` with extinction and distance_error"
        )
    if not len(run.posterior.samples):
        raise InputError(
            "posterior distances need the map's errors, and this run has no posterior "
            "samples: fit with --set inference.samples=32"
        )
    laws = [SurveyLaw(**law) for law in run.summary.get("surveys", ())]
    stars = calibrated(stars, laws, read_stars(run.path / "stars.parquet"))
    predicted = predict_columns(run.plan, run.posterior, stars)
    measured = measured_columns(run.posterior.residual, stars, run.plan, predicted)
    # Along a line the map alone rises.
    posterior, outliers = run.posterior, 1e-3
    if (field := posterior.residual) is not None:
        posterior = replace(posterior, residual=replace(field, stack=None))
        outliers = max(field.outliers, outliers)
    # Offsets from the catalogue's distance in its error: places of predictions, and of
    # the integrals between them.
    coarse, fine = np.linspace(-4, 4, 9), np.linspace(-4, 4, 161)
    between = np.array([np.interp(fine, coarse, node) for node in np.eye(len(coarse))])
    # Some 25 arrays of a number for each fine offset.
    parts = []
    for part in row_blocks(len(stars), 2**15):
        some = stars.select(part)
        assert some.extinction is not None
        distance, error = some.distance[:, None], some.distance_std[:, None]
        # No place is nearer than 2% of the star's distance.
        at = np.maximum(distance + error * coarse, 0.02 * distance)
        l, b = (np.repeat(x, len(coarse)) for x in (some.l, some.b))  # noqa: E741
        places = Stars(l=l, b=b, distance=at.ravel())
        found = predict_columns(run.plan, posterior, places)
        moments = [found[f"extinction_{k}"].reshape(at.shape) for k in ("mean", "std")]
        inside = np.isfinite(moments[0])
        last = np.maximum(inside.sum(axis=1) - 1, 0)[:, None]
        column = np.minimum(np.arange(len(coarse)), last)
        mean, std = (np.take_along_axis(x, column, axis=1) @ between for x in moments)
        noise = some.variance(0.0, run.plan.common_noise)[:, None]
        scale, observed = np.sqrt(std**2 + noise), some.extinction[:, None]
        prior = norm.pdf(fine)
        good = (1 - outliers) * norm.pdf(observed, mean, scale) * prior
        bad = outliers * norm.pdf(observed, mean, OUTLIER_FACTOR * scale) * prior
        # Far from any place of its line a star is an outlier, or keeps its distance.
        density = good + bad + 1e-300 * prior
        density /= density.sum(axis=1, keepdims=True)
        where = np.maximum(distance + error * fine, 0.02 * distance)
        center = (density * where).sum(axis=1)
        spread = np.sqrt((density * (where - center[:, None]) ** 2).sum(axis=1))
        wrong, outlier = bad.sum(axis=1), np.ones(len(some))
        total = good.sum(axis=1) + wrong
        np.divide(wrong, total, out=outlier, where=total > 0)
        known = inside[:, len(coarse) // 2]
        parts.append(np.where(known, [center, spread, outlier], np.nan))
    names = ("posterior_distance", "posterior_distance_std", "outlier")
    found = dict(zip(names, np.concatenate(parts, axis=1), strict=True))
    return {**found, **measured}
