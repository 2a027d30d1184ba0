"""The stars of a fit, their box, and their order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.catalog.eddington import with_expected_distances
from pipelines.catalog.schema import Split, Stars
from pipelines.config import FitConfig

# Pixels of about a degree.
_NSIDE = 64
# Fewest stars for a map.
FEWEST_STARS = 5
# Largest volume of a box around the sphere, relative to the stars' box.
_WIDER = 2.0
# Names of counts: stars that a box excludes, expected distances that met a limit.
OUTSIDE = "outside the box"
LIMITED = "at the limit of a shift"


def usable(
    stars: Stars, config: FitConfig, source: Path
) -> tuple[Stars, Counter[str], np.ndarray]:
    """Return the stars within ``data.max_distance``, and count read and excluded.

    They have distance errors only if ``model.distance_errors``, and expected distances
    with their errors unless ``model.distance_prior`` is flat. The relative shifts of
    all distances, shape ``(N,)``, follow.

    Raises `InputError` if the catalogue has no extinctions.
    """
    if stars.extinction is None:
        raise InputError(
            f"{source} has positions only, expected extinction and extinction_error: "
            "map them in `dustmap ingest`"
        )
    counts, measured = Counter(read=len(stars)), stars.distance
    if not config.model.distance_errors:
        # No stage, nor the copy in the run, may see them.
        stars = replace(stars, distance_error=None)
    elif config.model.distance_prior != "flat":
        stars, counts[LIMITED] = with_expected_distances(stars)
    shift = np.abs(stars.distance - measured) / measured
    if config.data.max_distance is not None:
        near = stars.distance <= config.data.max_distance
        counts["beyond max_distance"] = int((~near).sum())
        stars = stars.select(near)
    return stars, counts, shift


def inside_box(stars: Stars, split: Split, box: Box) -> tuple[Split, dict[str, int]]:
    """Return the rows of stars in the box and counts, with stars to fit by direction.

    Neighbours' sight lines cross the same, cached cells: products with 60,000 of them
    on 6 million points take half the time.
    """
    inside = split.within(box.contains(stars.positions()))
    train = stars.select(inside.train)
    pixels = healpy.ang2pix(_NSIDE, train.l, train.b, nest=True, lonlat=True)
    counts = {"fitted": len(train)}
    if len(split.validation):
        counts["for the residual"] = len(inside.validation)
    counts["held out"] = len(inside.test)
    counts[OUTSIDE] = len(stars) - len(inside.known) - len(inside.test)
    order = np.argsort(pixels, kind="stable")
    return replace(inside, train=inside.train[order]), counts


def within_given_box(positions: np.ndarray, config: FitConfig) -> np.ndarray:
    """Return a mask of places [pc] ``(N, 3)`` between the configured ends of axes."""
    given = (getattr(config.box, name) for name in "xyz")
    lower, upper = np.transpose([ends or (-np.inf, np.inf) for ends in given])
    return ((positions >= lower) & (positions <= upper)).all(axis=1)


def choose_box(
    positions: np.ndarray, config: FitConfig, source: Path
) -> tuple[Box, list[str]]:
    """Return a box around the observer and the stars at these places [pc], and notes.

    Axes without configured ends span the stars, or follow ``box.cover``; the furthest
    on every side, 0.5% of the stars in all, are excluded if they would enlarge the box
    by more than half.

    Raises `InputError` if the box holds too few stars.
    """
    notes = []
    given = [getattr(config.box, name) for name in "xyz"]
    box = _with_observer(positions.min(axis=0), positions.max(axis=0))
    side = 0.005 / 6
    trimmed = _with_observer(*np.quantile(positions, [side, 1 - side], axis=0))
    stretched = _volume(box) > 1.5 * _volume(trimmed)
    if None in given and len(positions) >= 200 and stretched:
        box = trimmed
        notes.append("box: the furthest on every side, 0.5% of the stars, left out")
    for axis, interval in enumerate(given):
        if interval is not None:
            box[:, axis] = interval
    box = _covering(box, positions, config)
    extent = box[1] - box[0]
    # A thinner box would have no cell for the dust along this axis.
    least = 0.02 * extent.max()
    for axis, interval in enumerate(given):
        if interval is None and extent[axis] < least:
            box[:, axis] += np.array([-0.5, 0.5]) * least
            notes.append(f"box: {'xyz'[axis]} widened to 2% of the longest side")
    found = Box(lower=tuple(box[0].tolist()), upper=tuple(box[1].tolist()))
    count = int(found.contains(positions).sum())
    if count < FEWEST_STARS:
        sides = zip("xyz", found.lower, found.upper, strict=True)
        where = ", ".join(f"{a:g} < {axis} < {b:g}" for axis, a, b in sides)
        raise InputError(
            f"{source}: only {count} of {len(positions)} stars to fit lie in the box "
            f"{where} pc, a map needs at least {FEWEST_STARS}: enlarge [box]"
        )
    return found, notes


def _covering(box: np.ndarray, positions: np.ndarray, config: FitConfig) -> np.ndarray:
    """Return the stars' box, or one around the observer's sphere or cylinder.

    By default these need ``data.max_distance``, and at most ``_WIDER`` times the
    volume; any remaining volume makes the cylinder taller.
    """
    asked, radius = config.box.cover, config.data.max_distance
    if asked == "stars" or (asked is None and radius is None):
        return box
    if radius is None:
        inside = ((positions >= box[0]) & (positions <= box[1])).all(axis=1)
        radius = float(np.linalg.norm(positions[inside], axis=1).max())
    for cover, axes in (("sphere", "xyz"), ("cylinder", "xy")):
        wide = box.copy()
        for axis, name in enumerate("xyz"):
            if name in axes and getattr(config.box, name) is None:
                wide[:, axis] = -radius, radius
        room = _WIDER * _volume(box) / _volume(wide)
        if asked == cover or (not asked and room >= 1):
            if not asked and config.box.z is None:
                height, far = np.ptp(wide[:, 2]) * room, np.abs(wide[:, 2]).max()
                tall = min(height / 2, height - far, radius)
                wide[:, 2] = np.minimum(wide[0, 2], -tall), np.maximum(wide[1, 2], tall)
            return wide
    return box


def _with_observer(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    return np.stack([np.minimum(lower, 0.0), np.maximum(upper, 0.0)])


def _volume(box: np.ndarray) -> float:
    extent = box[1] - box[0]
    return float(np.prod(np.maximum(extent, 0.02 * extent.max())))
