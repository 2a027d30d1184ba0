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

from pipelines.base.errors import InputError
from pipelines.catalog.tables import read_footer

_PROPERTIES = ("hats.properties", "properties")
_COLLECTION = "collection.properties"
_CATALOGUES = ("object", "source", "")
_MARKS = ("hats_", "all_margins", "hipscat_")
_DEEPEST = 29
_LEAF = re.compile(r"Norder=(\d+)/Dir=\d+/Npix=(\d+)(\.parquet)?")
_FOUND = "Norder=*/Dir=*/Npix=*"

Pixel = tuple[int, int]
"""HEALPix order and number (NESTED)."""


def is_hats(folder: Path) -> bool:
    """Whether a folder is a HATS catalogue, a collection of them, or its data."""
    if any(any(root.glob("Norder=*")) for root in (folder, folder / "dataset")):
        return True
    keys = _read_properties(folder, _COLLECTION) | _read_properties(folder)
    return any(key.startswith(_MARKS) for key in keys)


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
    properties = _read_properties(folder)
    kind = properties.get("dataproduct_type", properties.get("catalog_type", ""))
    if kind not in _CATALOGUES:
        raise InputError(
            f"{folder} is a HATS {kind}, not a catalogue of objects: its rows belong "
            "to another catalogue, name that"
        )
    leaves = _leaves(folder / "dataset" if (folder / "dataset").is_dir() else folder)
    if not leaves:
        raise InputError(f"{folder} is a HATS catalogue without {_FOUND}")
    _refuse_overlaps(folder, leaves)
    _check_listed(folder, leaves)
    in_order = sorted(leaves, key=lambda pixel: pixel[1] << 2 * (_DEEPEST - pixel[0]))
    files = [file for pixel in in_order for file in leaves[pixel]]
    stated = properties.get("hats_nrows", "")
    rows = sum(read_footer(file).num_rows for file in files)
    if stated.isdecimal() and int(stated) != rows:
        raise InputError(
            f"{folder}: the files hold {rows:,} rows but hats_nrows says "
            f"{int(stated):,}: copy the catalogue again"
        )
    return files


def _primary(folder: Path) -> Path:
    properties = _read_properties(folder, _COLLECTION)
    primary = folder / properties.get("hats_primary_table_url", "")
    if properties and (primary == folder or not primary.is_dir()):
        raise InputError(
            f"{folder / _COLLECTION} names no folder as hats_primary_table_url: name "
            "the catalogue itself"
        )
    return primary


def _read_properties(folder: Path, *names: str) -> dict[str, str]:
    """Read ``key=value`` lines from the first of the files that is there."""
    found = [folder / n for n in names or _PROPERTIES if (folder / n).is_file()]
    text = found[0].read_text(encoding="utf-8", errors="replace") if found else ""
    pairs = re.findall(r"^\s*([^#!=\s][^=\n]*)=(.*)$", text, flags=re.MULTILINE)
    return {key.strip(): value.strip() for key, value in pairs}


def _leaves(root: Path) -> dict[Pixel, list[Path]]:
    leaves: dict[Pixel, list[Path]] = {}
    for leaf in root.glob(_FOUND):
        match = _LEAF.fullmatch(leaf.relative_to(root).as_posix())
        if match is None or int(match[1]) > _DEEPEST:
            raise InputError(
                f"{leaf}: expected a HEALPix order up to {_DEEPEST} and a pixel number"
            )
        inside = leaf.rglob("*.parquet") if leaf.is_dir() else [leaf]
        files = sorted(path for path in inside if not path.name.startswith("_"))
        leaves.setdefault((int(match[1]), int(match[2])), []).extend(files)
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
    found = {pixel for pixel, files in leaves.items() if files}
    missing, extra = sorted(listed - found), sorted(set(leaves) - listed)
    for pixels, fault in ((missing, "missing"), (extra, "not in partition_info.csv")):
        if pixels:
            named = ", ".join(f"Norder={k}/Npix={p}" for k, p in pixels[:3])
            raise InputError(
                f"{folder}: {len(pixels)} partitions are {fault} ({named}): copy the "
                "catalogue again, or, to read what is there, name the folder with the "
                "Norder=* folders in a copy without partition_info.csv"
            )
