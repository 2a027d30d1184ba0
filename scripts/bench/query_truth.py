"""How true the answers of a map store are, by the run that it was exported from."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.geometry import Box
from pipelines.base.measurement import Row
from pipelines.catalog.schema import Stars
from pipelines.query import open_map


def places_in(box: Box, count: int, seed: int) -> tuple[Stars, SkyCoord]:
    """Places evenly in a box, as the rows of a table and as coordinates."""
    rng = np.random.default_rng(seed)
    x, y, z = rng.uniform(box.lower, box.upper, size=(count, 3)).T
    distance = np.sqrt(x**2 + y**2 + z**2)
    lon, lat = np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(z / distance))
    coords = SkyCoord(
        l=lon * u.deg, b=lat * u.deg, distance=distance * u.pc, frame="galactic"
    )
    return Stars(l=lon % 360, b=lat, distance=distance), coords


def scores(columns: dict[str, np.ndarray]) -> list[Row]:
    """By quantity and distance: how far means, stds and quantiles are apart."""
    distance = columns["distance"]
    edges = np.quantile(distance, [0, 1 / 3, 2 / 3, 1])
    rows: list[Row] = []
    for what in ("extinction", "density"):
        for low, high in pairwise(edges):
            here = (distance >= low) & (distance <= high)
            values = {
                (source, kind): columns[f"{source}_{what}_{kind}"][here]
                for source in ("store", "run")
                for kind in ("mean", "std", "p50")
            }
            std = values["run", "std"]
            off = (values["store", "mean"] - values["run", "mean"]) / std
            rows.append(
                {
                    "quantity": what,
                    "distance [pc]": f"{low:.0f} to {high:.0f}",
                    "places": int(here.sum()),
                    "no answer": int(np.isnan(off).sum()),
                    "mean off, rms [std]": float(np.sqrt(np.nanmean(off**2))),
                    "mean off, 95% within [std]": float(np.nanquantile(abs(off), 0.95)),
                    "std ratio, median": _ratio(values, "std"),
                    "median's ratio, median": _ratio(values, "p50"),
                }
            )
    return rows


def _ratio(values: dict[tuple[str, str], np.ndarray], kind: str) -> float:
    return float(np.nanmedian(values["store", kind] / values["run", kind]))


def draws_held(run: Path, store: Path, count: int, seed: int) -> Row:
    """Of posterior draws along rays, the share that gets to a value in its interval.

    The value is half of the median extinction through the whole map; a draw that is
    below it at the lower end of the interval and not at the upper one gets there
    between them.
    """
    rng = np.random.default_rng(seed)
    rays = SkyCoord(
        l=rng.uniform(0, 360, count) * u.deg,
        b=np.degrees(np.arcsin(rng.uniform(-1, 1, count))) * u.deg,
        frame="galactic",
    )
    dust = open_map(store, samples=run)
    half = dust.query(rays, integrated=True, mode="median", total=True).value / 2
    crossing, flags = dust.distance_at(rays, half, return_flags=True)
    kept = flags["bounded"]
    past = []
    for end in (crossing.lower, crossing.distance, crossing.upper):
        there = SkyCoord(rays.l, rays.b, distance=end, frame="galactic")
        there = cast(Any, there)[kept]
        draws = dust.query(there, integrated=True, mode="samples").value
        past.append(float((draws >= half[kept, None]).mean()))
    length = ((crossing.upper - crossing.lower) / crossing.distance)[kept]
    return {
        "rays": int(kept.sum()),
        "interval ends beyond the map": int((~kept).sum()),
        "there before the lower end": past[0],
        "before the distance itself": past[1],
        "before the upper end": past[2],
        "in the interval": past[2] - past[0],
        "interval / distance, median": float(np.median(length)),
    }
