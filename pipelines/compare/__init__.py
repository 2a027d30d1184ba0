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
from pipelines.maps.opening import form_of, is_queried
from pipelines.run.folder import read_run
from pipelines.storage.atomic import check_output_folder

HELD_OUT = "held-out"


def compare(
    run: str | Path,
    reference: str,
    output: Path,
    *,
    seed: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> tuple[Comparison, list[Path]]:
    """Compare a run with a reference; return the comparison and the written files.

    The ``reference`` is the word ``held-out``, a table of stars, a map or run, or
    ``dustmaps:NAME``. For maps there are the ``seed`` of the random cells, 0 by
    default, and ``options`` of `compare_map`; ``None`` stands for their defaults.

    Raises `InputError` if the run or the reference cannot be read, or the output
    exists.
    """
    check_output_folder(output, SUMMARY, overwrite=overwrite)
    path, package = Path(reference), is_queried(reference)
    given = {n: value for n, value in options.items() if value not in (None, {})}
    if package or (reference != HELD_OUT and form_of(path) != "stars"):
        generator = np.random.default_rng(seed or 0)
        comparison = compare_map(read_run(run), reference, generator=generator, **given)
    elif given or seed is not None:
        raise InputError(
            "--factor, --integrated, --query, --points and --seed are not for stars; "
            "ingest them in the band of the map"
        )
    elif reference == HELD_OUT:
        comparison = compare_held_out(read_run(run))
    else:
        comparison = compare_stars(read_run(run), read_stars(path), name=path.name)
    doing("writing tables and figures")
    return comparison, write_comparison(output, comparison, overwrite=overwrite)
