"""Answers at the rows of a table: columns with names, units and descriptions."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError
from pipelines.query.answer_files import Described, answer_file
from pipelines.query.beams import Beam
from pipelines.query.map import DustMap
from pipelines.query.targets import TargetTable

Columns = dict[str, np.ndarray]
Units = dict[str, str]
_QUANTITIES = {True: ("extinction", "mag"), False: ("density", "mag/pc")}
_CROSSING = {
    "distance_reached": "distance at which the extinction is reached",
    "distance_lower": "16% quantile of that distance, or how far the map goes",
    "distance_upper": "84% quantile of that distance",
}
_KINDS = {
    "mean": "mean",
    "std": "standard deviation",
    "median": "median",
    "scatter": "standard deviation between directions",
}
_NO_POSITION = "no_position"
# Digits of a standard deviation, and of a number that has none.
_OF_STD, _ALONE = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The question at each row.

    ``integrated`` lists one quantity or both; without a ``mode`` there are mean, std
    and five quantiles. With ``extinction`` [mag] the answer is the distance where it
    is reached, with ``beam`` the average extinction over that. ``prefix`` begins the
    names of answers.
    """

    integrated: tuple[bool, ...] = (True, False)
    mode: str | None = None
    pct: tuple[float, ...] = ()
    total: bool = False
    extinction: float | None = None
    beam: Beam | None = None
    seed: int = 0
    prefix: str = ""

    @property
    def directions(self) -> bool:
        """True if distances are ignored."""
        return self.total or self.extinction is not None


def ask(
    dust: DustMap, coords: SkyCoord, options: QueryOptions
) -> tuple[Columns, Units]:
    """Return columns of answers, shape ``(n,)`` each, and units of those with one.

    A row whose coordinates are NaN has the flag ``no_position`` and NaN as answers.
    """
    sphere: Any = coords.spherical
    known = np.isfinite(sphere.lon.deg) & np.isfinite(sphere.lat.deg)
    answers, units, flags = _at_known_places(
        dust, cast(SkyCoord, coords[known]), options
    )
    columns: Columns = {}
    for name, found in answers.items():
        columns[name] = np.full(len(known), np.nan)
        columns[name][known] = found
    for name in flags.dtype.names or ():
        columns[name] = np.zeros(len(known), dtype=bool)
        columns[name][known] = flags[name]
    return {**columns, _NO_POSITION: ~known}, units


def _at_known_places(
    dust: DustMap, coords: SkyCoord, options: QueryOptions
) -> tuple[Columns, Units, np.ndarray]:
    """Answers and flags at places that are known."""
    if options.extinction is not None:
        crossing, flags = dust.distance_at(
            coords, options.extinction, return_flags=True
        )
        parts = {n: part.value for n, part in zip(_CROSSING, crossing, strict=True)}
        return parts, dict.fromkeys(parts, "pc"), flags
    if options.beam is not None:
        average, flags = dust.beam(coords, options.beam, return_flags=True)
        parts = {
            f"extinction_{name}": part.value for name, part in average._asdict().items()
        }
        return parts, dict.fromkeys(parts, "mag"), flags
    columns, units, every = {}, {}, []
    for integrated in options.integrated:
        what, unit = _QUANTITIES[integrated]
        found, flags = _quantity(dust, coords, options, integrated)
        every.append(flags)
        columns |= {f"{what}_{kind}": values for kind, values in found.items()}
        units |= {f"{what}_{kind}": unit for kind in found}
    if "filled" in (every[0].dtype.names or ()):
        every[0]["filled"] = np.any([flags["filled"] for flags in every], axis=0)
    return columns, units, every[0]


def rounded(columns: Columns) -> Columns:
    """Round answers to significant digits, in single precision.

    A standard deviation keeps three digits, and its quantity as many decimals, at least
    three digits; distances do so with half their interval. Others keep five digits, and
    so do extinctions, whose order rounding by their own std might change.
    """
    found = {}
    for name, column in columns.items():
        if column.dtype == bool:
            found[name] = column
            continue
        what = name.partition("_")[0]
        digits, scale = _ALONE, np.abs(column)
        if what == "distance":
            ends = [columns[f"distance_{end}"] for end in ("lower", "upper")]
            digits, scale = _OF_STD, (ends[1] - ends[0]) / 2
        elif name == "extinction_std" or (
            what != "extinction" and f"{what}_std" in columns
        ):
            size = np.where(column == 0, np.inf, np.abs(column))
            digits, scale = _OF_STD, np.minimum(columns[f"{what}_std"], size)
        usable = np.isfinite(scale) & (scale > 0)
        safe = np.where(usable, scale, np.where(column == 0, 1.0, np.abs(column)))
        digits = np.where(usable, digits, _ALONE)
        power = digits - 1 - np.floor(np.log10(safe, where=safe > 0, out=safe * 0.0))
        values = np.rint(column * 10.0**power) / 10.0**power
        found[name] = values.astype(np.float32)
    return found


def write_answers(
    dust: DustMap,
    targets: TargetTable,
    options: QueryOptions,
    output: Path,
    *,
    overwrite: bool = False,
) -> Counter[str]:
    """Write a table with answers beside its own columns.

    Return the number of ``rows``, and of those for which each flag is set.

    Raises
    ------
    InputError
        If the output's format is not known or it exists, there is no row, or an
        answer has the name of a column.
    """
    about = {"program": "dustmap", "version": dustmap.__version__}
    about |= {"map": dust.path.name, "band": dust.band}
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        write = None
        for rows in targets:
            columns, units = ask(dust, rows.coords, options)
            answers = {f"{options.prefix}{n}": c for n, c in rounded(columns).items()}
            if write is None:
                taken = [name for name in answers if name in targets.columns]
                if taken:
                    raise InputError(
                        f"the table has columns {', '.join(taken)} already: put "
                        "something before the names of the answers, such as --prefix "
                        "map_"
                    )
                described = _described(answers, units, targets, options, about["band"])
                file = answer_file(output, described, about, overwrite=overwrite)
                write = stack.enter_context(file)
            write(rows.columns | answers)
            counts["rows"] += len(rows.coords)
            flags = (name for name, column in columns.items() if column.dtype == bool)
            counts.update({name: int(columns[name].sum()) for name in flags})
        if write is None:
            raise InputError("there is no row to ask the map at")
    return counts


def _described(
    answers: Columns,
    units: Units,
    targets: TargetTable,
    options: QueryOptions,
    band: str,
) -> dict[str, Described]:
    """Return units and descriptions of the table's own columns and of the answers."""
    found = {
        name: Described(unit=info.unit or "", text=info.description or "")
        for name, info in targets.columns.items()
    }
    for name in answers:
        plain = name.removeprefix(options.prefix)
        text = _CROSSING.get(plain) or _FLAG_TEXTS.get(plain, "")
        if plain in units and not text:
            what, _, kind = plain.partition("_")
            place = "to this place" if what == "extinction" else "at this place"
            if options.beam is not None:
                place = "over the beam, to this distance"
            if what == "extinction" and options.total:
                place = "through the whole map"
            of = f"{what} {place}{f', {band}' if band else ''}"
            quantile = f"{kind[1:].replace('_', '.')}% quantile"
            said = quantile if kind.startswith("p") else _KINDS.get(kind, kind)
            text = f"{said} of the {of}"
            if kind == "std" and f"{options.prefix}filled" in answers:
                text += "; where filled, of the map's own part"
        found[name] = Described(unit=units.get(plain, ""), text=text)
    return found


_FLAG_TEXTS = {
    "filled": "the answer, or its far part, is that of the map that fills",
    "joined": "its near part is that of the map itself",
    "inside": "the place is in the map",
    "extrapolated": "no sight line of a star reaches so far: only the prior",
    "unseen": "no sight line of a star crosses this cell",
    "no_distance": "the row has no distance",
    _NO_POSITION: "the row has no position",
    "to_edge": "the distance is infinite: extinction to the edge of the map",
    "not_reached": "the map ends before the extinction is reached",
    "bounded": "the upper end of the interval is in the map",
}


def _quantity(
    dust: DustMap, coords: SkyCoord, options: QueryOptions, integrated: bool
) -> tuple[Columns, np.ndarray]:
    if options.mode is None:
        total = options.total
        whole = (
            dust.extinction(coords, total=total) if integrated else dust.density(coords)
        )
        parts = {"mean": whole.mean, "std": whole.std, **whole.quantiles}
        known = {n: part.value for n, part in parts.items() if part is not None}
        return known, whole.flags
    answer, flags = dust.query(
        coords,
        integrated=integrated,
        mode=options.mode,
        pct=list(options.pct) or None,
        total=options.total,
        return_flags=True,
        rng=np.random.default_rng(options.seed),
    )
    if answer.ndim == 1:
        return {options.mode: answer.value}, flags
    if options.mode == "percentile":
        names = [f"p{p:g}" for p in options.pct]
    else:
        width = len(str(max(answer.shape[1] - 1, 0)))
        names = [f"sample{i:0{width}}" for i in range(answer.shape[1])]
    return dict(zip(names, answer.value.T)), flags
