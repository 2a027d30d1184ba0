"""From a path to a map: a store, a run, a file of samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.query.map import DustMap
from pipelines.query.store import is_store, open_store
from pipelines.query.stored import StoredAnswers

if TYPE_CHECKING:
    from pipelines.query.redrawn import Fitted, PosteriorAnswers


def open_map(
    path: str | Path, *, samples: str | Path | Fitted | None = None
) -> DustMap:
    """Open a map for questions.

    Parameters
    ----------
    path
        A map store (``dustmap export RUN --zarr map.zarr``), of which only the chunks
        around the coordinates will be read, or a run folder, which computes every
        answer anew from its posterior.
    samples
        A run folder, or what was opened of one, whose posterior answers
        ``mode="samples"`` beside a store.

    Raises
    ------
    InputError
        If it is neither.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(f"{place} does not exist: give a map store or a run folder")
    if not is_store(place):
        return DustMap(path=place, stored=None, posterior=_posterior(place))
    store = open_store(place)
    return DustMap(
        path=place,
        stored=StoredAnswers(store),
        posterior=None if samples is None else _posterior(samples),
        band=str(store.attributes.get("band", "")),
    )


def _posterior(source: str | Path | Fitted) -> PosteriorAnswers:
    from pipelines.query.redrawn import PosteriorAnswers

    if not isinstance(source, str | Path):
        return PosteriorAnswers(source)
    from pipelines.run import read_run

    return PosteriorAnswers(read_run(source))
