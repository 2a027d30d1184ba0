"""Simulated catalogues for the benchmarks: the stars to fit, those to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from verbs import Taken, dustmap

from pipelines.catalog.schema import Stars, read_stars, write_stars

HALF = (2000.0, 2000.0, 1000.0)
BOX = tuple(f"box.{a}=[{-h:g},{h:g}]" for a, h in zip("xyz", HALF, strict=True))
GALAXY = tuple(f"truth.half_{a}={h:g}" for a, h in zip("xyz", HALF, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Two tables without what only the truth knows, and that truth.

    ``stars`` are as observed. ``targets`` stand at their true places, where ``truth``
    holds noise-free ``extinction`` [mag] and ``density`` [mag/pc].
    """

    stars: Path
    targets: Path
    train: Stars
    truth: dict[str, np.ndarray]
    taken: Taken


def simulated(
    folder: Path,
    *,
    stars: int,
    targets: int,
    seed: int,
    settings: Sequence[str] = (),
    truth: Path | None = None,
    keep: bool = False,
) -> Simulated:
    """`dustmap simulate` in the box of 4 × 4 × 2 kpc; the last ``targets`` held out.

    Stars come in random order, so that the last are like the others. ``truth`` is where
    the density goes; with ``keep`` what the same command has left stands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mock.parquet"
    options = [w for pair in (*GALAXY, *settings) for w in ("--set", pair)]
    counts = ["--stars", str(stars + targets), "--seed", str(seed)]
    if truth is not None:
        counts += ["--truth", str(truth)]
    taken = dustmap(
        ["simulate", "-o", path, "--overwrite", *counts, *options],
        folder / "simulate.log",
        keep=keep,
    )
    everything = read_stars(path)
    train = _observed(everything.select(slice(0, stars)))
    test = everything.select(slice(stars, None))
    true = Stars(l=test.l, b=test.b, distance=test.extra["distance_true"])
    found = Simulated(
        stars=folder / "stars.parquet",
        targets=folder / "targets.parquet",
        train=train,
        truth={n: test.extra[f"{n}_true"] for n in ("extinction", "density")},
        taken=taken,
    )
    write_stars(found.stars, train, overwrite=True)
    write_stars(found.targets, true, overwrite=True)
    return found


def _observed(stars: Stars) -> Stars:
    return Stars(
        l=stars.l,
        b=stars.b,
        distance=stars.distance,
        distance_error=stars.distance_error,
        extinction=stars.extinction,
        extinction_error=stars.extinction_error,
        source_id=stars.source_id,
    )
