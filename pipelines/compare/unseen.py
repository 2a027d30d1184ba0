"""Which stars of a table a fit has not seen."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars, read_table
from pipelines.run.folder import Run
from pipelines.run.held_out import FILE

Place = tuple[float, float, float]


def not_fitted(run: Run, stars: Stars) -> tuple[Stars, Counter[str]]:
    """The stars that the fit has not seen, and counts."""
    counts: Counter[str] = Counter({"read": len(stars)})
    named = read_stars(run.path / "stars.parquet")
    seen = _among(stars, set(_places(named.l, named.b, named.distance)))
    why = "fitted"
    if seen.any() and run.summary["counts"].get("fitted", 0) > len(named):
        # The run names only some of the stars it fitted, but all it held out.
        seen = ~_among(stars, _kept_back(run))
        why = "fitted, or not known to be held out"
    counts[why] = int(seen.sum())
    return stars.select(~seen), counts


def _kept_back(run: Run) -> set[Place]:
    path = run.path / FILE
    if not path.is_file():
        raise InputError(
            f"{run.path} kept no star back and does not list all that it fitted: the "
            "map can only be judged by stars of another catalogue"
        )
    columns, _, _ = read_table(path)
    return set(_places(columns["l"], columns["b"], columns["distance"]))


def _among(stars: Stars, places: set[Place]) -> np.ndarray:
    own = _places(stars.l, stars.b, stars.distance)
    return np.array([place in places for place in own], dtype=bool)


def _places(*columns: np.ndarray) -> list[Place]:
    return list(zip(*(column.tolist() for column in columns), strict=True))
