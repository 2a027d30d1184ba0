"""From a path to a map: a store, another export, or a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.base.errors import InputError
from pipelines.formats.zarr import is_zarr
from pipelines.query.exports import open_export
from pipelines.query.map import DustMap
from pipelines.query.store import MapStore, open_store

if TYPE_CHECKING:
    from pipelines.query.posterior import PosteriorAnswers
    from pipelines.run.folder import Run


def open_map(path: str | Path, *, samples: str | Path | Run | None = None) -> DustMap:
    """Open a map for questions.

    Parameters
    ----------
    path
        A map store (``dustmap export RUN --zarr map.zarr``), of which only the chunks
        around the coordinates will be read; another export (``map.fits``, ``map.vti``,
        ``map.healpix.fits`` or shells), which is read whole and knows less
        (:mod:`pipelines.query.exports`); or a run folder, which computes every answer
        anew.
    samples
        The run folder, or a run that was read, to answer ``mode="samples"`` beside a
        store.

    Raises
    ------
    InputError
        If it is none of these, or the samples are those of another map or band.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(
            f"{place} does not exist: expected what `dustmap export RUN` wrote "
            "(map.zarr, map.fits, map.vti, map.healpix.fits or shells), or the folder "
            "of a run"
        )
    if place.is_dir() and not is_zarr(place):
        return _of_posterior(place, place)
    store = open_store(place) if place.is_dir() else open_export(place)
    posterior = None if samples is None else _beside(store, samples)
    return DustMap(path=place, source=store, samples=posterior, band=store.band)


def open_run(path: str | Path) -> DustMap:
    """Open the folder of a run, and nothing else; see `open_map`.

    Raises
    ------
    InputError
        If it is none, or is incomplete or altered.
    """
    from pipelines.run.folder import read_run

    return _of_posterior(Path(path), read_run(path))


def _of_posterior(place: Path, source: Path | Run) -> DustMap:
    posterior, band = _posterior(source)
    return DustMap(path=place, source=posterior, samples=posterior, band=band)


def _beside(store: MapStore, samples: str | Path | Run) -> PosteriorAnswers:
    """Samples of the very map in the store."""
    posterior, band = _posterior(samples)
    if band != store.band:
        raise InputError(
            f"{store.path} is a map of {store.band or 'an unnamed band'}, the samples "
            f"are of {band or 'an unnamed band'}: open the map that was exported from "
            "this run as it is"
        )
    ours, theirs = store.box, posterior.box
    if not np.allclose([ours.lower, ours.upper], [theirs.lower, theirs.upper]):
        raise InputError(
            f"{store.path} spans {ours.lower} to {ours.upper} pc, the samples "
            f"{theirs.lower} to {theirs.upper} pc: they are of another map"
        )
    return posterior


def _posterior(source: str | Path | Run) -> tuple[PosteriorAnswers, str]:
    """What answers from a posterior, and the band of its extinctions."""
    from pipelines.products.provenance import provenance
    from pipelines.query.posterior import PosteriorAnswers
    from pipelines.run.folder import read_run

    if isinstance(source, str | Path):
        source = read_run(source)
    return PosteriorAnswers(source), str(provenance(source)["extinction_band"])
