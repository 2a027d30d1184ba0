"""What ``import dustmap`` offers: each verb as a function on arrays, tables and files.

The names are loaded when they are first used (:mod:`dustmap`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import QTable

from pipelines.base.errors import InputError
from pipelines.catalog.schema import CANONICAL_UNITS, Stars, read_stars, write_stars
from pipelines.query import DustMap, open_map
from pipelines.query.places import places_of

if TYPE_CHECKING:
    from pipelines.catalog.report import IngestReport
    from pipelines.regress import Report

__all__ = ["DustMap", "fit", "ingest", "open_map", "predict", "regress", "simulate"]

PathLike = str | Path


def fit(
    stars: SkyCoord | PathLike,
    extinction: Any = None,
    extinction_error: Any = None,
    *,
    output: PathLike,
    distance_error: Any = None,
    band: str = "",
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> DustMap:
    """Fit a map, write its run folder and open it.

    Parameters
    ----------
    stars
        Coordinates with distances, or the table that `ingest` wrote.
    extinction, extinction_error
        Of coordinates: arrays [mag], or quantities.
    output
        The run folder; stars given as arrays are kept beside it, in
        ``OUTPUT.stars.parquet``.
    distance_error
        Of coordinates: standard deviations [pc], or quantities.
    band
        What the extinctions are of, e.g. ``A_V``.
    settings
        Keys of the configuration (``dustmap config`` prints them) and their values,
        for example ``{"budget.minutes": 2, "box.spacing": 50}``.
    overwrite, resume
        Whether an existing run may be replaced, and whether to go on with one that was
        interrupted.

    Raises
    ------
    InputError
        If a column is missing or not finite, a setting is unknown, or the output
        exists.
    """
    from pipelines.config import FitConfig, load_config
    from pipelines.fit import fit as run_fit

    output = Path(output)
    config = load_config(FitConfig, overrides=_overrides(settings))
    if isinstance(stars, SkyCoord):
        columns = _stars(stars, extinction, extinction_error, distance_error, band)
        stars = output.with_name(output.name + ".stars.parquet")
        write_stars(stars, columns, overwrite=overwrite or resume)
    elif extinction is not None or extinction_error is not None:
        raise InputError(f"{stars} holds its own extinctions: give no others")
    run_fit(Path(stars), output, config, overwrite=overwrite, resume=resume)
    return open_map(output)


def ingest(
    sources: PathLike | Sequence[PathLike], output: PathLike, **options: Any
) -> IngestReport:
    """Read catalogues into one table with known columns and units.

    ``options`` are those of `pipelines.catalog.ingest.ingest`: ``preset``,
    ``mappings=["l=glon:deg", …]``, ``where``, ``band``, ``overwrite`` and so on.
    """
    from pipelines.catalog.ingest import ingest as run_ingest

    each = [sources] if isinstance(sources, str | Path) else sources
    return run_ingest([Path(source) for source in each], Path(output), **options)


def simulate(
    output: PathLike,
    *,
    truth: PathLike | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a mock catalogue, and its true density where ``truth`` says.

    ``settings`` are keys of ``dustmap config --simulate``; returns the catalogue.
    """
    from pipelines.config import SimulateConfig, load_config
    from pipelines.simulate import simulate as run_simulate

    config = load_config(SimulateConfig, overrides=_overrides(settings))
    place = None if truth is None else Path(truth)
    run_simulate(config, Path(output), truth=place, overwrite=overwrite)
    return Path(output)


def predict(run: PathLike, stars: SkyCoord | PathLike) -> QTable:
    """Extinction and density of a run at coordinates or at the rows of a table.

    Returns
    -------
    A row for each place: ``extinction_`` and ``density_`` with ``mean``, ``std``,
    ``p2_5`` to ``p97_5`` [mag, mag/pc], and ``inside``; NaN outside the box.
    """
    from pipelines.run.folder import read_run
    from pipelines.run.predict import UNITS, predict_columns

    fitted = read_run(run)
    places = _places(stars) if isinstance(stars, SkyCoord) else read_stars(stars)
    columns = {"l": places.l, "b": places.b, "distance": places.distance}
    columns |= predict_columns(fitted.plan, fitted.posterior, places)
    units = {name: unit for name, unit in UNITS.items() if name in columns}
    return QTable(columns, units=units)


def regress(
    source: PathLike,
    output: PathLike,
    *,
    target: str,
    overwrite: bool = False,
    **options: Any,
) -> Report:
    """Predict one column of a table from others, with uncertainty.

    ``options`` are those of `pipelines.regress.options.Options`.
    """
    from pipelines.regress import Options
    from pipelines.regress import regress as run_regress

    chosen = Options(target=target, **options)
    return run_regress(Path(source), Path(output), chosen, overwrite=overwrite)


def _overrides(settings: Mapping[str, Any] | None) -> list[str]:
    """As the command line has them: JSON's values are TOML's."""
    return [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]


def _places(coords: SkyCoord) -> Stars:
    """Coordinates as a table of places; they must have distances."""
    places = places_of(coords)
    return Stars(l=places.l, b=places.b, distance=places.distance)


def _stars(
    coords: SkyCoord, extinction: Any, error: Any, distance_error: Any, band: str
) -> Stars:
    """Coordinates with their extinctions, checked."""
    if extinction is None or error is None:
        raise InputError("coordinates need extinction and extinction_error")
    places = _places(coords)
    given = {"extinction": extinction, "extinction_error": error}
    given |= {} if distance_error is None else {"distance_error": distance_error}
    columns = {name: _column(name, v, len(places)) for name, v in given.items()}
    sound = np.isfinite([places.distance, *columns.values()]).all(axis=0)
    sound &= (columns["extinction_error"] > 0) & (places.distance > 0)
    if not sound.all():
        raise InputError(
            f"{int((~sound).sum())} of {len(sound)} stars have a distance or "
            "extinction that is not finite, or a distance or extinction_error that is "
            f"not positive, the first is number {int(np.argmin(sound))}: leave them out"
        )
    meta = {"sources": [], **({"band": band} if band else {})}
    return replace(places, meta=meta, **columns)


def _column(name: str, values: Any, count: int) -> np.ndarray:
    """One number for each star, in the canonical unit of the column."""
    unit = CANONICAL_UNITS[name]
    try:
        column = u.Quantity(values, unit, dtype=np.float64).value
    except (u.UnitConversionError, TypeError) as error:
        raise InputError(f"{name}: expected numbers or a quantity in {unit}") from error
    if column.shape not in ((), (count,)):
        raise InputError(f"{name} has shape {column.shape}, expected ({count},)")
    return np.full(count, column)
