"""Queries at the rows of a table: columns with names, units and descriptions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Column

from pipelines.bands import Conversion
from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.base.quantities import numbers
from pipelines.formats.citation import PROGRAM
from pipelines.maps.answers import PRIOR_SHARE
from pipelines.maps.places import unmasked
from pipelines.query.map import DustMap
from pipelines.storage.atomic import check_output

if TYPE_CHECKING:
    from pipelines.query.targets import Targets, TargetTable

# Bands as a part of names of columns: E_BP_RP.
_WORD = str.maketrans("(- .", "____", ")")
Magnitudes = Mapping[str, tuple[list[str], Conversion]]
"""By band the columns of magnitudes and, if any, of errors, and its extinction."""
_TEXTS = {
    "distance_reached": "distance at which the extinction is reached",
    "distance_lower": "16% quantile of that distance, or the end of the map",
    "distance_upper": "84% quantile of that distance",
    "inside": "the place is in the map",
    "beyond_box": "the place is beyond the map's box: its prior goes on there",
    "prior_share": "share of the mean that is the prior's, beyond the box",
    "extrapolated": "no star is behind this place: the value is the prior's",
    "unseen": "no sight line of a star crosses this cell",
    "no_distance": "the row has no distance",
    "no_position": "the row has no position",
    "to_edge": "the distance is infinite: extinction to the edge of the map",
    "not_reached": "the map ends before the extinction is reached",
    "bounded": "the upper end of the interval is in the map",
    "no_distance_error": "the distance has no error: it is taken to be exact",
    "part_outside": "part of the distance's distribution is outside, and left out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Options of a query at each row.

    ``integrated`` lists one quantity or both; without a ``mode`` the columns are mean,
    std and five quantiles. ``changes`` of the band multiply the results by their
    factors; of several, names begin with the band. ``extinction`` [mag], in the one
    band, selects the distance at which it is reached. ``magnitudes`` are those to
    deredden (`with_magnitudes`). Names of the new columns begin with ``prefix``.
    """

    integrated: tuple[bool, ...] = (True, False)
    mode: str | None = None
    pct: tuple[float, ...] = ()
    total: bool = False
    extinction: float | None = None
    seed: int = 0
    prefix: str = ""
    changes: Sequence[Conversion] = ()
    magnitudes: Magnitudes = field(default_factory=dict)

    @property
    def directions(self) -> bool:
        """True if distances are ignored."""
        return self.total or self.extinction is not None

    def factors(self, dust: DustMap) -> dict[str, float]:
        """Return the factor on the map's values, by band of the results."""
        return {c.target: c.factor for c in self.changes} or {dust.band: 1.0}

    def band(self, dust: DustMap) -> str:
        """Return the band of the results, or several in one line."""
        return "; ".join(self.factors(dust))


def ask(
    dust: DustMap, coords: SkyCoord, options: QueryOptions, rows: Targets | None = None
) -> dict[str, Any]:
    """Return astropy columns of results ``(n,)`` with units, and flags.

    Rows with NaN coordinates have the flag ``no_position`` and NaN as results. With
    errors of the distances of ``rows`` results are those of `averaged`.
    """
    coords = unmasked(coords)
    sphere: Any = coords.spherical
    known = np.isfinite(sphere.lon.deg) & np.isfinite(sphere.lat.deg)
    some = cast(SkyCoord, coords[known])
    found: dict[str, u.Quantity] = {}
    factors = options.factors(dust)
    if options.extinction is not None:
        if len(factors) > 1:
            raise InputError("--at-extinction is in one band: give one --band")
        wanted = options.extinction / next(iter(factors.values()))
        crossing, flags = dust.distance_at(some, wanted, return_flags=True)
        ends = ("distance_reached", "distance_lower", "distance_upper")
        found = dict(zip(ends, crossing, strict=True))
    else:
        moments = _moments(dust, some, options)
        if rows is not None and rows.errors is not None:
            # A query of one place starts without SciPy.
            from pipelines.query.mixture import averaged

            moments = averaged(dust, some, rows.errors[known], moments)
        for what, (parts, _) in moments.items():
            found |= {f"{what}_{kind}": part for kind, part in parts.items()}
        # Those of the first quantity.
        flags = next(iter(moments.values()))[1]
    columns: dict[str, Any] = {}
    every = {name: np.full(len(known), np.nan) for name in found}
    for (name, part), (band, factor) in product(found.items(), factors.items()):
        every[name][known] = part.value
        values = every[name] * (1.0 if part.unit == u.pc else factor)
        whole = f"{band.translate(_WORD)}_{name}" if len(factors) > 1 else name
        text = _description(name, band, dust, options)
        columns[whole] = Column(values, unit=part.unit, description=text)
    table = {} if rows is None else rows.columns
    if options.magnitudes and "extinction_mean" not in found:
        raise InputError("--deredden needs the mean and std of extinctions")
    for band, (columns_of, change) in options.magnitudes.items():
        name = f"{band.translate(_WORD)}_dereddened"
        less = change.factor * every["extinction_mean"]
        try:
            seen, *errors = (numbers(table[column], u.mag) for column in columns_of)
        except (KeyError, TypeError, ValueError):
            fault = f"no numbers in {' and '.join(columns_of)} to deredden {band}"
            raise InputError(f"{fault}: name a column, --map '{band}=COLUMN'") from None
        text = f"{columns_of[0]} less the mean {change.target}"
        columns[name] = Column(seen - less, unit=u.mag, description=text)
        text = " and ".join([f"std of {name} by that of the map", *columns_of[1:]])
        # Unknown by a map without std.
        std = change.factor * every.get("extinction_std", np.nan)
        std = np.hypot(std, sum(errors, 0.0 * seen))
        columns[f"{name}_std"] = Column(std, unit=u.mag, description=text)
    for name in flags.dtype.names or ():
        values = np.full(len(known), np.nan if name == PRIOR_SHARE else False)
        values[known] = flags[name]
        columns[name] = Column(values, description=_TEXTS[name])
    return {**columns, "no_position": Column(~known, description=_TEXTS["no_position"])}


def _moments(
    dust: DustMap, coords: SkyCoord, options: QueryOptions
) -> dict[str, tuple[dict[str, u.Quantity], np.ndarray]]:
    """Return by quantity its results, by the end of their names, and flags."""
    found = {}
    for integrated in options.integrated:
        name = "extinction" if integrated else "density"
        if options.mode is not None:
            found[name] = _of_mode(dust, coords, options, integrated)
            continue
        if integrated:
            whole = dust.extinction(coords, total=options.total)
        else:
            whole = dust.density(coords)
        parts = {"mean": whole.mean, "std": whole.std, **whole.quantiles}
        known = {kind: part for kind, part in parts.items() if part is not None}
        found[name] = known, whole.flags
    return found


def _of_mode(
    dust: DustMap, coords: SkyCoord, options: QueryOptions, integrated: bool
) -> tuple[dict[str, u.Quantity], np.ndarray]:
    """Return the results of one mode, and flags."""
    mode = options.mode
    assert mode is not None
    answer, flags = dust.query(
        coords,
        integrated=integrated,
        mode=mode,
        pct=list(options.pct) or None,
        total=options.total,
        return_flags=True,
        rng=np.random.default_rng(options.seed),
    )
    if answer.ndim == 1:
        return {mode: answer}, flags
    if mode == "percentile":
        names = [f"p{p:g}" for p in options.pct]
    else:
        width = len(str(max(answer.shape[1] - 1, 0)))
        names = [f"sample{i:0{width}}" for i in range(answer.shape[1])]
    return dict(zip(names, answer.T)), flags


def _description(name: str, band: str, dust: DustMap, options: QueryOptions) -> str:
    """Return the description of a result's column."""
    if name in _TEXTS:
        return _TEXTS[name]
    what, _, kind = name.partition("_")
    place = "to this place" if what == "extinction" else "at this place"
    if options.total:
        place = "through the whole map"
    statistic = kind
    if kind == "std":
        statistic = "standard deviation"
    elif kind.startswith("p"):
        statistic = f"{kind[1:].replace('_', '.')}% quantile"
    said = dust.answers.said(integrated=what == "extinction")
    stated = "".join(f", {one}" for one in (band, said) if one)
    return f"{statistic} of the {what} {place}{stated}"


def rounded(columns: dict[str, Column]) -> dict[str, Column]:
    """Round results to significant digits, in single precision.

    A standard deviation keeps three digits, and its quantity as many decimals but at
    least three digits; for distances, half the interval serves as std. Others keep five
    digits, as do extinctions, because rounding by their std might change their order.
    """
    found = {}
    for name, column in columns.items():
        if column.dtype == bool:
            found[name] = column
            continue
        values = np.asarray(column)
        parts = re.match(r".*?(extinction|density|distance|dereddened)", name)
        stem, what = (parts[0], parts[1]) if parts else (name, "")
        digits, scale = 5, np.abs(values)
        if what == "distance":
            lower, upper = (columns[f"distance_{end}"] for end in ("lower", "upper"))
            digits, scale = 3, (np.asarray(upper) - np.asarray(lower)) / 2
        elif f"{stem}_std" in columns and (
            what != "extinction" or name == f"{stem}_std"
        ):
            size = np.where(values == 0, np.inf, np.abs(values))
            digits, scale = 3, np.minimum(np.asarray(columns[f"{stem}_std"]), size)
        usable = np.isfinite(scale) & (scale > 0)
        safe = np.where(usable, scale, np.where(values == 0, 1.0, np.abs(values)))
        digits = np.where(usable, digits, 5)
        power = digits - 1 - np.floor(np.log10(safe, where=safe > 0, out=safe * 0.0))
        single = (np.rint(values * 10.0**power) / 10.0**power).astype(np.float32)
        found[name] = Column(single, unit=column.unit, description=column.description)
    return found


def with_magnitudes(
    path: Path, mappings: Sequence[str], changes: Mapping[str, Conversion], **how: Any
) -> tuple[TargetTable, Magnitudes]:
    """Open a table of places (`TargetTable`) with magnitudes to deredden.

    ``changes`` lead from the map to the extinctions of their bands, such as ``BP``.
    Columns are called so or mapped, ``BP=COLUMN``; that of errors, ``BP_error``, is
    mapped. Raises `InputError` if one is not in mag.
    """
    from pipelines.query.targets import TargetTable

    names = {name for band in changes for name in (band, f"{band}_error")}
    own = [text for text in mappings if text.partition("=")[0] in names]
    mapped = dict(text.removesuffix(":mag").split("=", 1) for text in own)
    others = [text for text in mappings if text not in own]
    table, magnitudes = TargetTable(path, others, **how), {}
    for band, change in changes.items():
        named = (n for n in (band, f"{band}_error") if n in {band, *mapped})
        columns = [mapped.get(name, name) for name in named]
        units = {table.columns[n].unit or "mag" for n in columns if n in table.columns}
        if wrong := units - {"mag"}:
            raise InputError(f"{path}: {columns} in {wrong.pop()}, expected mag")
        magnitudes[band] = columns, change
    return table, magnitudes


def write_answers(
    dust: DustMap,
    targets: TargetTable,
    options: QueryOptions,
    output: Path,
    *,
    overwrite: bool = False,
) -> Counter[str]:
    """Write a table with results beside its own columns.

    Returns the number of ``rows``, and the number of rows by flag.

    Raises `InputError` if the output exists or its format is unknown, the table has no
    rows, or a result has the name of a column.
    """
    # A query of one place starts without the readers of tables.
    from pipelines.catalog.answer_files import answer_file, check_columns
    from pipelines.catalog.formats import ColumnInfo

    check_output(output, overwrite=overwrite)
    if targets.errors and options.mode in ("samples", "random_sample"):
        raise InputError(
            "samples are not averaged over errors of distances: leave these out, by "
            f"--map {targets.errors[0]}=none and no other --map of it"
        )
    check_columns(output, (rows.columns for rows in targets))
    parts = iter(targets)
    first = next(parts, None)
    if first is None:
        raise InputError("the table has no rows, expected at least one place")
    own = rounded(ask(dust, first.coords, options, first))
    names = [options.prefix + name for name in own]
    infos = (
        ColumnInfo(unit=unit_text(column), description=str(column.description))
        for column in own.values()
    )
    new = dict(zip(names, infos, strict=True))
    about = {**PROGRAM, "map": dust.path.name, "band": options.band(dust)}
    about |= {"averaged_over": ", ".join(targets.errors)}
    about |= {"extinctions": dust.answers.said(integrated=True)}
    for number, origin in enumerate(dust.answers.origins(), start=1):
        about |= {f"map{number}_{key}": str(value) for key, value in origin.items()}
    if not about["band"] and dust.answers.origins():
        about["band"] = "unknown"
    counts: Counter[str] = Counter()
    file = answer_file(output, targets.columns, new, about, overwrite=overwrite)
    with file as write:
        for number, rows in enumerate(chain([first], parts)):
            columns = own
            if number:
                columns = rounded(ask(dust, rows.coords, options, rows))
            values = (np.asarray(column) for column in columns.values())
            write(rows.columns | dict(zip(names, values, strict=True)))
            counts["rows"] += len(rows.coords)
            doing(f"{counts['rows']:,} rows")
            flags = (name for name, column in columns.items() if column.dtype == bool)
            counts.update({name: int(columns[name].sum()) for name in flags})
    return counts


def unit_text(column: Column) -> str:
    """Return the unit of a column, such as ``mag/pc``; empty without one."""
    return "" if column.unit is None else str(column.unit).replace(" ", "")
