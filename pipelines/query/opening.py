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
        around the coordinates will be read; or a run folder, or the file of its samples
        (``dustmap samples``), which compute every answer anew from the posterior.
    samples
        A run folder, a file of samples, or what was opened of one, which answers
        ``mode="samples"`` beside a store.

    Raises
    ------
    InputError
        If it is none of these.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(
            f"{place} does not exist: give a map store, a run or a file of samples"
        )
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
    if Path(source).is_file():
        from pipelines.redraw import open_samples

        return PosteriorAnswers(open_samples(source).run)
    from pipelines.run import read_run

    return PosteriorAnswers(read_run(source))
