"""How true the answers of a map store are, by the run that it was exported from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.geometry import Box
from pipelines.base.measurement import Row
from pipelines.catalog.schema import Stars


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
