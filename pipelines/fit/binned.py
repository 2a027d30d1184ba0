"""Catalogues of more stars than fit into memory, as the means of bins.

A first pass over the catalogue counts stars by direction, a second divides them among
files, by parts of the sky. All further ones have one part at a time in memory: that of
expected distances and places, and those that find the bins.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.catalog.merging import merged
from pipelines.catalog.schema import (
    COLUMNS,
    Split,
    Stars,
    held_out_places,
    star_batches,
)
from pipelines.catalog.sky_parts import DISK, SkyParts
from pipelines.catalog.tables import row_count
from pipelines.config import FitConfig
from pipelines.fit.magnitude_limit import faintest
from pipelines.planning.selection import OUTSIDE, usable, within_given_box

# Pixels of places, as those of the smallest bins: ten of the usual size have the 5,000
# stars to hold out.
_NSIDE = 1024
# Stars among which those to hold out are found, 8,000 at most.
_CANDIDATES = 2**20


def count_many(source: Path, config: FitConfig, most: int) -> np.ndarray | None:
    """Return numbers of stars by direction (`SkyParts.count`) if ``most`` are fewer.

    Stars outside the configured limits, by their measured distances, do not count.

    Raises `InputError` if the catalogue cannot be read.
    """
    if row_count(source) <= most:
        return None
    counts, inside = 0, 0
    for stars in star_batches(source, ("l", "b", "distance")):
        counts = counts + SkyParts.count(stars)
        near = stars.distance <= (config.data.max_distance or np.inf)
        inside += int((within_given_box(stars.positions(), config) & near).sum())
    return np.asarray(counts) if inside > most else None


def read_binned(
    source: Path,
    config: FitConfig,
    generator: torch.Generator,
    most: int,
    counts: np.ndarray,
    folder: Path,
) -> tuple[Stars, Split, np.ndarray, np.ndarray, Counter[str]]:
    """Return bins of the stars to fit and then single stars, with the rows of both.

    Numbers of the `faintest` stars, shifts of some distances, and numbers of stars by
    use follow. ``counts`` are by
    `count_many`; parts of the sky are in ``folder`` for a while.

    Raises `InputError` if the catalogue has no extinctions, or the disk no room.
    """
    need, free = DISK * int(counts.sum()), shutil.disk_usage(folder).free
    if free < need:
        raise InputError(
            f"{counts.sum():,} stars take {need / 1e9:.3g} GB beside the output for a "
            f"while, where {free / 1e9:.3g} GB are free: choose another disk"
        )
    # What a killed process leaves is removed with other parts of files.
    with TemporaryDirectory(prefix=".stars.", suffix=".part", dir=folder) as place:
        parts, meta, faint = SkyParts(Path(place), counts), {}, np.zeros(3)
        names = {*COLUMNS, config.data.magnitude or "l"} - {"source_id", "merged"}
        for stars in star_batches(source, names):
            parts.add(parts.numbered(stars))
            meta = stars.meta
        used, aside, sizes, shifts = Counter[str](), [], [], []
        # Those of every so many places may be held out.
        step = -(-int(counts.sum()) // _CANDIDATES)

        def inside(stars: Stars) -> Stars:
            near = within_given_box(stars.positions(), config)
            used[OUTSIDE] += int((~near).sum())
            return stars.select(near)

        def fitted(stars: Stars) -> Stars:
            stars, own, shift = usable(stars, config, source)
            shifts.append(shift[::step])
            used.update(own)
            faint[:] += faintest(stars.extra, config)
            places = stars.places(_NSIDE)
            candidate = places % step == 0
            number = sum(map(len, sizes)) + places[candidate] // step
            sizes.append(np.bincount(places)[::step])
            stars = replace(stars, extra={})
            aside.append(replace(stars.select(candidate), extra={"place": number}))
            return inside(stars.select(~candidate))

        parts.change(fitted)
        found = Stars.joined(aside)
        number, found = found.extra["place"], replace(found, extra={})
        count = used["read"] - used["beyond max_distance"]
        size = np.concatenate(sizes)
        part = held_out_places(size, count, config, generator)[number]
        parts.add(inside(found.select(part == 0)))
        single = [found.select(part == each) for each in (1, 2)]
        bins, fewest = merged(parts, most)
    used["merged"] = count - used[OUTSIDE] - sum(map(len, single))
    say(
        f"{used['merged']:,} stars to fit count as the means of {len(bins):,} bins, of "
        f"{fewest} stars or more where they are dense: budget.memory_gib holds no "
        f"more. Of {len(size):,} places, the largest with {size.max():,} stars, some "
        "are held out as a whole"
    )
    ones = (replace(each, merged=np.ones(len(each))) for each in single)
    stars = replace(Stars.joined([bins, *ones]), meta=meta)
    if stars.survey is not None:
        stars = replace(stars, survey=np.array(parts.surveys)[stars.survey])
    ends = np.cumsum([0, len(bins), *map(len, single)])
    split = Split(*(np.arange(a, b) for a, b in itertools.pairwise(ends)))
    return stars, split, faint, np.concatenate(shifts), used
