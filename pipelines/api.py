"""What ``import dustmap`` offers: each verb as a function on arrays, tables and files.

The names are loaded when they are first used (:mod:`dustmap`).
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import QTable, Table, vstack

from pipelines.base.errors import InputError, require_known_system
from pipelines.base.progress import say
from pipelines.base.quantities import numbers, path_of
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.tables import as_file, is_table
from pipelines.maps.places import places_of
from pipelines.query import DustMap, open_map

if TYPE_CHECKING:
    from dustmap.functionals import Functionals
    from pipelines.catalog.report import IngestReport
    from pipelines.regress import Regressor
    from pipelines.simulate import Simulation

PathLike = str | Path
_STARS = "coordinates, a table in memory, or the path of one"
require_known_system()


def fit(
    stars: Any,
    extinction: Any = None,
    extinction_error: Any = None,
    *,
    output: PathLike | None = None,
    distance_error: Any = None,
    survey: Any = None,
    declare_band: str | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Any,
) -> DustMap:
    """Fit a map, write its run folder and open it.

    Parameters
    ----------
    stars
        Coordinates with distances, or the table that `ingest` wrote (its path), or a
        table in memory: astropy's, a DataFrame, or arrays by name. Coordinates and
        tables in memory are read by `ingest`, which drops faulty rows and counts them.
    extinction, extinction_error
        Of coordinates: arrays [mag], or quantities.
    output
        The run folder; stars from memory are kept beside it, in
        ``OUTPUT.stars.parquet``. Without one the run lasts as long as this Python
        process, unless `DustMap.save` copies it.
    distance_error
        Of coordinates: standard deviations [pc], or quantities.
    survey
        Of coordinates: the name of each star's survey, if there are several.
    declare_band
        The band of the extinctions, e.g. ``A_V``.
    settings
        Values by key of the configuration, which ``dustmap config`` prints, for example
        ``{"budget.memory_gib": 2, "box": {"spacing": 50}}``.
    overwrite, resume
        Whether an existing run may be replaced, and whether to go on with one that was
        interrupted.
    options
        Of stars in memory: options of `ingest`, for example
        ``mappings=["l=glon:deg", "extinction=av:mag"]``.

    Raises
    ------
    InputError
        If a column is missing, a setting is unknown, or the output exists.
    """
    from pipelines.config import FitConfig, load_config
    from pipelines.fit import fit as run_fit
    from pipelines.run.folder import check_run_folder

    if output is None:
        folder = TemporaryDirectory(prefix="dustmap-")
        atexit.register(folder.cleanup)
        output = Path(folder.name) / "run"
        say(f"without output= the run lasts as long as this process: {output}")
    output = path_of(output, "a path for output")
    if not resume:
        check_run_folder(output, overwrite=overwrite)
    config = load_config(FitConfig, settings=settings)
    own = (extinction, extinction_error, distance_error, survey)
    if isinstance(stars, SkyCoord):
        stars = _columns(stars, extinction, extinction_error, distance_error)
        if survey is not None:
            stars["survey"] = np.asarray(survey).astype(str)
    elif any(column is not None for column in own):
        raise InputError(
            "extinction, extinction_error, distance_error and survey are those of "
            "coordinates; a table holds its own: give no others, but map its columns"
        )
    if declare_band is not None:
        options["declare_band"] = declare_band
    if is_table(stars):
        kept = output.with_name(output.name + ".stars.parquet")
        say(str(ingest(stars, kept, overwrite=overwrite or resume, **options)))
        stars = kept
    elif options:
        raise InputError(
            f"{', '.join(options)}: only of a table in memory, since others are read "
            "by ingest"
        )
    path = path_of(stars, _STARS)
    report = run_fit(path, output, config, overwrite=overwrite, resume=resume)
    say(str(report))
    return open_map(output)


def ingest(sources: Any, output: PathLike, **options: Any) -> IngestReport:
    """Read catalogues into one table with known columns and units.

    ``sources`` is a path, several, or a table in memory: astropy's, a DataFrame, or
    arrays by name. ``options`` are those of `pipelines.catalog.ingest.ingest`:
    ``preset``, ``mappings=["l=glon:deg", …]``, ``where``, ``band`` and so on.
    """
    from pipelines.catalog.ingest import ingest as run_ingest

    if is_table(sources):
        with as_file(sources) as file:
            return run_ingest([file], path_of(output), **options)
    several = isinstance(sources, Iterable) and not isinstance(sources, str | Path)
    paths = [path_of(source) for source in (sources if several else [sources])]
    return run_ingest(paths, path_of(output), **options)


def simulate(**settings: Any) -> Simulation:
    """Make a mock catalogue, in memory, and the true density behind it.

    Parameters
    ----------
    settings
        Those of ``dustmap config --simulate`` that differ from their defaults, sections
        as mappings: ``simulate(stars=3000, seed=1, dust={"clouds": 0})``, or by their
        whole names, ``**{"dust.clouds": 0}``; and values of
        `pipelines.config.simulation.Galaxy`, as ``magnitude_limit=18``.

    Returns
    -------
    ``stars`` and ``truth``, and ``write(output, truth=None)``, which makes the files of
    the verb.

    Raises
    ------
    InputError
        If a setting is unknown, or next to no star can be seen.
    """
    from pipelines.config import SimulateConfig, load_config
    from pipelines.config.simulation import Galaxy
    from pipelines.simulate import simulate as run_simulate

    further = {n: settings.pop(n) for n in Galaxy.model_fields if n in settings}
    return run_simulate(load_config(SimulateConfig, settings=settings), **further)


def predict(
    run: PathLike,
    stars: Any,
    *,
    mappings: Sequence[str] = (),
    outside: str = "nan",
    band: str | Sequence[str] = (),
    deredden: Sequence[str] = (),
) -> QTable:
    """Extinction and density of a run at coordinates or at the rows of a table.

    Values are those at the places themselves, where `DustMap.query` interpolates.

    Parameters
    ----------
    stars
        Coordinates with distances, the path of a table, or a table in memory.
    mappings
        Which columns of a table are ``l`` and ``b`` or ``ra`` and ``dec``, and
        ``distance``: ``["l=glon:deg", "distance=d:kpc"]``. Results are averaged over
        errors of distances that are mapped, ``distance_error=e_d:pc``.
    outside
        ``prior`` to go on with the prior outside the box
        (`DustMap.with_outside`).
    band
        Convert the results to this band (`pipelines.bands`), or several.
    deredden
        Magnitudes of the table to correct: ``["G"]``, by ``["G=COLUMN"]`` in mappings.

    Returns
    -------
    A row for each place, with the columns of a table first: ``extinction_`` and
    ``density_`` with ``mean``, ``std``, ``p2_5`` to ``p97_5`` [mag, mag/pc], and flags,
    ``inside`` among them; NaN outside the box, except with its prior.
    """
    from pipelines.bands import conversion, source_band
    from pipelines.query.exact import open_exactly
    from pipelines.query.table import QueryOptions, ask, with_magnitudes

    dust = DustMap(answers=open_exactly(path_of(run))).with_outside(outside)
    bands = [band] if isinstance(band, str) else band
    changes = [conversion(source_band(dust.band), name) for name in bands]
    if isinstance(stars, SkyCoord):
        if mappings or deredden:
            raise InputError("mappings and deredden are for the columns of a table")
        places = places_of(stars)
        own = {"l": places.l, "b": places.b, "distance": places.distance}
        units = {name: CANONICAL_UNITS[name] for name in own}
        found = ask(dust, stars.reshape(-1), QueryOptions(changes=changes))
        return QTable({**own, **found}, units=units)
    with (
        as_file(stars)
        if is_table(stars)
        else nullcontext(path_of(stars, _STARS)) as file
    ):
        by = {n: conversion(source_band(dust.band), f"A_{n}") for n in deredden}
        table, found = with_magnitudes(file, mappings, by)
        wanted = QueryOptions(changes=changes, magnitudes=found)
        parts = [
            Table({**rows.columns, **ask(dust, rows.coords, wanted, rows)})
            for rows in table
        ]
    if not parts:
        raise InputError("the table has no rows, expected at least one place")
    return QTable(vstack(parts))


def regress(
    X: Any,
    y: Any,
    *,
    noise: Any = None,
    functionals: Functionals | None = None,
    likelihood: str = "gaussian",
    method: str = "auto",
    whitening: str = "cholesky",
    seed: int = 0,
) -> Regressor:
    """Fit a Gaussian process that predicts a target from inputs.

    ``model.predict(X_new, return_std=True)`` gives mean and standard deviation in the
    unit of y. Arguments and errors are those of `Regressor` and `Regressor.fit`.
    """
    from pipelines.regress import Regressor

    model = Regressor(
        likelihood=likelihood, method=method, whitening=whitening, seed=seed
    )
    return model.fit(X, y, noise=noise, functionals=functionals)


def _columns(
    coords: SkyCoord, extinction: Any, error: Any, distance_error: Any
) -> dict[str, u.Quantity]:
    """Return coordinates and their extinctions as columns by canonical name."""
    if extinction is None or error is None:
        raise InputError("coordinates need extinction and extinction_error")
    at = places_of(coords)
    table = {"l": at.l * u.deg, "b": at.b * u.deg, "distance": at.distance * u.pc}
    given = {"extinction": extinction, "extinction_error": error}
    given |= {} if distance_error is None else {"distance_error": distance_error}
    for name, values in given.items():
        unit = CANONICAL_UNITS[name]
        try:
            column = numbers(values, unit) * u.Unit(unit)
        except (u.UnitConversionError, TypeError) as fault:
            raise InputError(
                f"{name}: expected numbers or a quantity in {unit}"
            ) from fault
        if column.shape not in ((), (len(at),)):
            raise InputError(f"{name} has shape {column.shape}, expected ({len(at)},)")
        table[name] = np.broadcast_to(column, len(at), subok=True)
    return table
