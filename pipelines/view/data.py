"""The numbers of a page: planes, sky, curves, stars and clouds of a map."""

from __future__ import annotations

import csv
import importlib.resources
import math
from pathlib import Path
from typing import Any

import healpy
import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from matplotlib.colors import to_hex

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.catalog.provenance import stated_band
from pipelines.catalog.schema import Stars, read_stars
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import near_the_sun
from pipelines.cubes.thinned import POINTS, shown_levels, thinned
from pipelines.figures.integrals import crossed, density_name, ratio
from pipelines.figures.scales import UNMAPPED, colour_scale
from pipelines.maps.answers import Answers, MissingError, extinctions_along
from pipelines.maps.places import Places
from pipelines.view.embedding import encoded, packed

# Pixels of 0.9 deg, and distances of each: half of the page beside its JavaScript.
_NSIDE = 64
_DISTANCES = 40
# Most samples of the density, and bytes of all of them in all levels.
_SAMPLES = 8
_SAMPLED = 2_000_000
# Most stars of the page, drawn at random beyond.
_STARS = 60_000
# Relative errors above this saturate in the figures, too.
_LARGEST_RATIO = 3.0
# Colours between which a browser interpolates.
_COLOURS = 64
# A distance [pc] beyond all maps.
_BEYOND = 1e9
_KINDS = {"mean": "value", "p50": "value", "std": "error", "ratio": "ratio"}


def gather(source: Answers, *, stars: Path | None = None) -> dict[str, Any]:
    """Return what a map holds for its page, JSON-serialisable.

    ``absent`` says why a part is left out, ``meta`` is the provenance of the map's own
    products. ``stars`` is a table of stars to show (of `dustmap ingest`); a run shows
    its own.

    Raises `InputError` if the map holds neither densities nor extinctions, or the table
    is none or in another band.
    """
    absent: dict[str, str] = {}
    parts: dict[str, Any] = {"cubes": None, "sky": None}
    meta: dict[str, Any] = {}
    doing("the map's density")
    try:
        cube = source.cube()
        parts["cubes"], meta = _cubes(source, cube), cube.meta
    except MissingError as error:
        absent["cubes"] = str(error)
    doing("the map's extinctions")
    try:
        parts["sky"] = _sky(source)
    except MissingError as error:
        absent["sky"] = str(error)
    if len(absent) == 2:
        raise MissingError(" ".join(absent.values()))
    if parts["cubes"] is None:
        meta = source.sky_maps().meta
    if stars is not None:
        bands = known_band(stated_band(stars)), source.known_band
        if all(bands) and len({*bands}) > 1:
            raise InputError(
                f"{stars} is in {bands[0]}, {source.path} in {bands[1]}: ingest it "
                f"with --band '{bands[1]}'"
            )
    elif source.run is not None:
        stars = source.run / "stars.parquet"
    # Rotates unit vectors of ICRS to Galactic ones.
    axes: Any = SkyCoord(np.eye(3), representation_type="cartesian", frame="icrs")
    return parts | {
        "absent": absent,
        "meta": meta,
        "stars": None if stars is None else _stars(read_stars(stars)),
        "clouds": clouds(),
        "icrs": axes.galactic.cartesian.xyz.value.tolist(),
        "unmapped": to_hex(UNMAPPED),
    }


def clouds() -> list[dict[str, Any]]:
    """Return molecular clouds of known distance, by name, l, b [deg] and pc."""
    table = importlib.resources.files("catalogs") / "clouds.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    _, *found = csv.reader(line for line in lines if not line.startswith("#"))
    names = ("l", "b", "distance", "error")
    return [dict(zip(names, map(float, row[1:])), name=row[0]) for row in found]


def shown_arrays(cube: Cube) -> dict[str, np.ndarray]:
    """Return densities [mag/kpc] of a level, and std over mean, at most 3."""
    to_kpc = u.Unit(cube.unit).to(u.Unit("mag kpc-1"))
    arrays = {
        name: to_kpc * cube.arrays[name].astype(np.float64)
        for name in (density_name(cube.arrays), "p50", "std")
        if name in cube.arrays
    }
    std = arrays.pop("std", None)
    if std is not None and "mean" in arrays:
        arrays["ratio"] = np.minimum(ratio(std, arrays["mean"]), _LARGEST_RATIO)
    return arrays


def _cubes(source: Answers, cube: Cube) -> list[dict[str, Any]]:
    """Return densities of the whole box and near the Sun, with their columns."""
    found, shown = [], shown_levels(cube)
    cells = sum(min(math.prod(cube.levels[n].shape), POINTS) for n in shown.values())
    count = min(_SAMPLES, _SAMPLED // cells) if source.sample_count else 0
    for title, number in shown.items():
        level = cube.levels[number]
        arrays = shown_arrays(level)
        saturated = float((arrays.get("ratio", np.zeros(1)) >= _LARGEST_RATIO).mean())
        thin = thinned(level, arrays | _sampled(source, level, count))
        found.append(
            {
                "title": title,
                **{axis: getattr(thin, axis).tolist() for axis in "xyz"},
                "step": list(thin.step),
                "factor": thin.factor,
                "saturated": saturated,
                "seen": _bits(thin.seen),
                "arrays": {
                    name: _image(values, _KINDS.get(name, "value"), thin.seen)
                    for name, values in thin.arrays.items()
                },
                "columns": _columns(source, level, number),
            }
        )
    return found


def _sampled(source: Answers, cube: Cube, count: int) -> dict[str, np.ndarray]:
    """Return so many samples of the density [mag/kpc]."""
    if not count:
        return {}
    doing("samples of the density")
    places = Places.of_points(cube.points)
    values = 1e3 * source.samples(places, integrated=False)[:, :count]
    columns = enumerate(values.T, start=1)
    return {f"sample {n}": places.restore(column) for n, column in columns}


def _columns(source: Answers, level: Cube, number: int) -> dict[str, dict[str, Any]]:
    """Return extinctions through the box, by the axis that they are along."""
    found = {}
    for along, ends in (("z", None), ("y", near_the_sun(level.y))):
        columns = source.columns(along, ends, level=number)
        if columns is None:
            continue
        low, high = columns.low, columns.high
        seen = crossed(level, along, (low, high))
        image = columns.arrays["mean"]
        seen = np.ones_like(image, dtype=bool) if seen is None else seen
        found[along] = {
            "low": low,
            "high": high,
            "shape": list(image.shape),
            "seen": _bits(seen),
            "arrays": {
                name: _image(columns.arrays[name], _KINDS[name], seen)
                for name in ("mean", "p50", "std")
                if name in columns.arrays
            },
        }
    return found


def _sky(source: Answers) -> dict[str, Any]:
    """Return curves of the extinction at pixels' centres, RING order, Galactic."""
    if "mean" not in source.kinds(integrated=True):
        raise MissingError(f"{source.path} holds no mean extinctions from the Sun")
    distances = np.linspace(0.0, source.extent, _DISTANCES + 1)[1:]
    pixels = np.arange(healpy.nside2npix(_NSIDE))
    directions = np.stack(healpy.pix2vec(_NSIDE, pixels), axis=-1)
    found = extinctions_along(source, directions, distances)
    last = source.last_star(Places.of_points(directions))
    # The quantiles of a pixel share a scale.
    largest = [np.nanmax(np.abs(v), axis=0, initial=0.0) for v in found.values()]
    scale = np.max(largest, axis=0).astype("<f4")
    known = np.isfinite(found["mean"]).mean(axis=1)
    return {
        "nside": _NSIDE,
        "distances": distances.tolist(),
        # The first map to show: the last one of half the sky.
        "first": max(int((known >= 0.5).sum()) - 1, 0),
        # Infinity, where a map does not say, is beyond every distance.
        "last": encoded(np.minimum(last, _BEYOND).astype("<f4")),
        "scale": encoded(scale),
        "arrays": {
            name: packed(values, scale.astype(np.float64))
            for name, values in found.items()
        },
        "colours": {kind: _colours(kind, 0.0, 1.0) for kind in ("value", "error")},
    }


def _stars(stars: Stars) -> dict[str, Any]:
    """Return at most so many stars as a page holds."""
    columns = {"l": stars.l, "b": stars.b, "distance": stars.distance}
    if stars.distance_error is not None:
        # Of a star without a stated error it is zero.
        columns["distance_error"] = stars.distance_std
    if stars.extinction is not None and stars.extinction_error is not None:
        columns["extinction"] = stars.extinction
        columns["extinction_error"] = stars.extinction_error
    rows = np.arange(len(stars))
    if len(rows) > _STARS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _STARS, replace=False))
    found = {}
    for name, values in columns.items():
        low, high = float(values[rows].min()), float(values[rows].max())
        step = (high - low) / (2**16 - 1) or 1.0
        steps = np.rint((values[rows] - low) / step).astype("<u2")
        found[name] = {"low": low, "step": step, "bytes": encoded(steps)}
    return {"of": len(stars), "shown": len(rows), "columns": found}


def _image(values: np.ndarray, kind: str, seen: np.ndarray) -> dict[str, Any]:
    """Return an array with one scale, and the limits and colours to draw it with."""
    scale = colour_scale(kind, values, seen=seen)
    low, high = float(scale.norm.vmin or 0.0), float(scale.norm.vmax or 1.0)
    flat = values.reshape(len(values), -1)
    most = float(np.nanmax(np.abs(flat), initial=0.0)) or 1.0
    return {
        **packed(flat, np.full(flat.shape[1], most)),
        "scale": most,
        "kind": kind,
        "limits": [low, high],
        "colours": _colours(kind, low, high),
    }


def _colours(kind: str, low: float, high: float) -> list[str]:
    """Return the still figures' colours of a kind, evenly from low to high."""
    colours = colour_scale(kind, np.array([low, high]), vmin=low, vmax=high).cmap
    return [to_hex(colour) for colour in colours(np.linspace(0, 1, _COLOURS))]


def _bits(mask: np.ndarray) -> str:
    return encoded(np.packbits(mask.reshape(-1), bitorder="little"))
