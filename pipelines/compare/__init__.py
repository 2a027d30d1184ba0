"""Comparison of a map with stars or with another map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.catalog.schema import read_stars
from pipelines.compare.comparison import SUMMARY, Comparison, write_comparison
from pipelines.compare.maps import compare_map
from pipelines.compare.stars import compare_held_out, compare_stars
from pipelines.maps.opening import PACKAGE, form_of
from pipelines.run.folder import read_run
from pipelines.storage.atomic import check_output_folder

HELD_OUT = "held-out"


def compare(
    run: str | Path,
    reference: str,
    output: Path,
    *,
    factor: float | None = None,
    integrated: bool | None = None,
    query: dict[str, Any] | None = None,
    points: int | None = None,
    seed: int | None = None,
    stated: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> tuple[Comparison, list[Path]]:
    """Compare a run with a reference; return the comparison and the written files.

    Parameters
    ----------
    reference
        The word ``held-out``, a table of stars, a map or run, or
        ``dustmaps:MODULE.CLASS``.
    factor
        Factor from values of the reference to the band of the map.
    integrated, query
        Options of a map of the package dustmaps, as in `compare_map`.
    points, seed
        Of maps: number of random cells, 5,000 by default, and the seed, 0.
    stated
        Of another program's map (`pipelines.maps.opening.open_answers`).

    Raises
    ------
    InputError
        If the run or the reference cannot be read, or the output exists.
    """
    check_output_folder(output, SUMMARY, overwrite=overwrite)
    path, package = Path(reference), reference.startswith(PACKAGE)
    if package or (reference != HELD_OUT and form_of(path) != "stars"):
        comparison = compare_map(
            read_run(run),
            reference,
            integrated=integrated,
            factor=factor,
            options=query,
            stated=stated,
            points=5000 if points is None else points,
            generator=np.random.default_rng(0 if seed is None else seed),
        )
    elif stated or (factor, integrated, query or None, points, seed) != (None,) * 5:
        raise InputError(
            "--factor, --integrated, --query, --points, --seed, --unit and the like "
            "are not for stars; ingest them in the band of the map"
        )
    elif reference == HELD_OUT:
        comparison = compare_held_out(read_run(run))
    else:
        comparison = compare_stars(read_run(run), read_stars(path), name=path.name)
    doing("writing tables and figures")
    return comparison, write_comparison(output, comparison, overwrite=overwrite)
