"""Survey catalogues in the HATS layout: trees of parquet files, one per HEALPix pixel.

``[dataset/]Norder=k/Dir=d/Npix=p.parquet``, or ``Npix=p/`` with several files, beside
``hats.properties`` (formerly ``properties``) and ``partition_info.csv``; a collection
is a folder whose ``collection.properties`` names such a catalogue. Margins and
thumbnails, which hold rows a second time, and metadata are not read. The layout is
described at https://hats.readthedocs.io.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.base.errors import InputError
from pipelines.catalog.source import unreadable

_PROPERTIES = ("hats.properties", "properties")
_COLLECTION = "collection.properties"
_CATALOGUES = ("object", "source", "")
_MARKS = ("hats_", "all_margins", "hipscat_")
_DEEPEST = 29
_LEAF = re.compile(r"Npix=(\d+)(\.parquet)?")

Pixel = tuple[int, int]
"""HEALPix order and number (NESTED)."""


def is_hats(folder: Path) -> bool:
    """Whether a folder is a HATS catalogue, a collection of them, or its data."""
    if any(any(root.glob("Norder=*")) for root in (folder, folder / "dataset")):
        return True
    described = [_read_properties(folder / n) for n in (_COLLECTION, *_PROPERTIES)]
    return any(key.startswith(_MARKS) for item in described for key in item)


def hats_files(folder: Path) -> list[Path]:
    """Return the parquet files of a catalogue in the order of the sky (NESTED).

    Raises
    ------
    InputError
        If the folder holds a margin, an index or no data, if partitions overlap or
        those that ``partition_info.csv`` lists are missing, or if the files hold
        another number of rows than the catalogue's properties say.
    """
    folder = _primary(folder)
    found = [_read_properties(folder / name) for name in _PROPERTIES]
    properties = found[0] or found[1]
    kind = properties.get("dataproduct_type", properties.get("catalog_type", ""))
    if kind not in _CATALOGUES:
        raise InputError(
            f"{folder} is a HATS {kind}, not a catalogue of objects: its rows belong "
            "to another catalogue, name that"
        )
    leaves = _leaves(folder / "dataset" if (folder / "dataset").is_dir() else folder)
    if not leaves:
        raise InputError(f"{folder} is a HATS catalogue without Norder=*/Dir=*/Npix=*")
    _refuse_overlaps(folder, leaves)
    _check_listed(folder, leaves)
    in_order = sorted(leaves, key=lambda pixel: pixel[1] << 2 * (_DEEPEST - pixel[0]))
    files = [file for pixel in in_order for file in leaves[pixel]]
    stated = properties.get("hats_nrows", "")
    if stated.isdecimal() and int(stated) != (rows := sum(map(_rows_in, files))):
        raise InputError(
            f"{folder}: the files hold {rows:,} rows but hats_nrows says "
            f"{int(stated):,}: copy the catalogue again"
        )
    return files


def _primary(folder: Path) -> Path:
    properties = _read_properties(folder / _COLLECTION)
    primary = folder / properties.get("hats_primary_table_url", "")
    if properties and (primary == folder or not primary.is_dir()):
        raise InputError(
            f"{folder / _COLLECTION} names no folder as hats_primary_table_url: name "
            "the catalogue itself"
        )
    return primary


def _read_properties(path: Path) -> dict[str, str]:
    """Read ``key=value`` lines; nothing if the file is absent."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = [line.strip().partition("=") for line in lines]
    return {
        key.strip(): value.strip()
        for key, equals, value in pairs
        if equals and not key.startswith(("#", "!"))
    }


def _leaves(root: Path) -> dict[Pixel, list[Path]]:
    leaves: dict[Pixel, list[Path]] = {}
    for level in root.glob("Norder=*"):
        order = level.name.removeprefix("Norder=")
        if not order.isdecimal() or int(order) > _DEEPEST:
            raise InputError(f"{level}: expected a HEALPix order from 0 to {_DEEPEST}")
        for leaf in level.glob("Dir=*/Npix=*"):
            match = _LEAF.fullmatch(leaf.name)
            if match is None:
                raise InputError(f"{leaf}: expected Npix=NUMBER.parquet or a folder")
            inside = leaf.rglob("*.parquet") if leaf.is_dir() else [leaf]
            files = sorted(path for path in inside if not path.name.startswith("_"))
            leaves.setdefault((int(order), int(match[1])), []).extend(files)
    return leaves


def _refuse_overlaps(folder: Path, leaves: dict[Pixel, list[Path]]) -> None:
    for order, number in leaves:
        for level in range(order):
            outer = number >> 2 * (order - level)
            if (level, outer) in leaves:
                raise InputError(
                    f"{folder}: Norder={order}/Npix={number} lies in Norder={level}/"
                    f"Npix={outer}, which is there too: two catalogues in one folder?"
                )


def _check_listed(folder: Path, leaves: dict[Pixel, list[Path]]) -> None:
    listing = folder / "partition_info.csv"
    if not listing.is_file():
        return
    try:
        with open(listing, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
        listed = {(int(row["Norder"]), int(row["Npix"])) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{listing}: expected columns Norder and Npix") from error
    missing = sorted(listed - {pixel for pixel, files in leaves.items() if files})
    extra = sorted(set(leaves) - listed)
    for pixels, fault in ((missing, "missing"), (extra, "not in partition_info.csv")):
        if pixels:
            named = ", ".join(f"Norder={k}/Npix={p}" for k, p in pixels[:3])
            raise InputError(
                f"{folder}: {len(pixels)} partitions are {fault} ({named}): copy the "
                "catalogue again, or, to read what is there, name the folder with the "
                "Norder=* folders in a copy without partition_info.csv"
            )


def _rows_in(path: Path) -> int:
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
