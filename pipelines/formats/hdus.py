"""What all FITS files here share: provenance in HISTORY, checksums on reading."""

from __future__ import annotations

import json
import os
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from astropy.io import fits
from astropy.io.fits.verify import VerifyError

from pipelines.base.errors import InputError
from pipelines.formats.citation import cited_papers
from pipelines.storage.atomic import atomic_file

_OPENING = "PROVENANCE AS JSON, LINES TO BE JOINED:"
_CLOSING = "END OF PROVENANCE"
_CARD = 72
# More inputs than these are told in HISTORY alone.
_INPUTS = 99
_SPACE = "\\u0020"
# The sum of an undamaged unit, CHECKSUM included: all bits set.
_WHOLE = 0xFFFFFFFF
_BLOCK = 2880 << 12


def empty_primary(meta: dict[str, Any], summary: str) -> fits.PrimaryHDU:
    """Make a primary unit without data whose HISTORY tells ``summary`` and ``meta``.

    Program, band, conversion, catalogues and inputs have cards of their own.

    Raises
    ------
    ValueError
        If ``meta`` is not JSON.
    """
    try:
        text = json.dumps(meta, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"provenance must be plain JSON: {error}") from error
    primary = fits.PrimaryHDU()
    for keyword, value, comment in _cards(meta):
        primary.header[keyword] = (value, comment)
    for line in (summary, _OPENING, *_split(text), _CLOSING):
        primary.header.add_history(line)
    return primary


def _cards(meta: dict[str, Any]) -> Iterator[tuple[str, str | float, str]]:
    """Cards on origin, band and whom to cite: ASCII, as the standard wants them."""
    if "program" in meta:
        yield "CREATOR", _ascii(meta["program"]), "program that made this map"
    if "extinction_band" in meta:
        yield "EXTBAND", _ascii(meta["extinction_band"]), "band of the extinction"
    change = meta.get("band_conversion")
    if change:
        yield "BANDFROM", _ascii(change["source"]), "band of the catalogue"
        yield "BANDFAC", change["factor"], "EXTBAND / BANDFROM"
        if change["curve"]:
            yield "EXTCURVE", _ascii(change["curve"]), _ascii(change["package"])
        yield "R_V", change["r_v"], "A_V / E(B-V)"
        for number, (band, nm) in enumerate(change["wavelengths"].items(), start=1):
            yield f"WAVE{number}", nm, f"[nm] that stands for {band}"[:45]
    citation = meta.get("citation") or {}
    if citation:
        software = citation["software"]
        yield "LICENSE", _ascii(software["license"]), "of the program"
    for number, work in enumerate(citation.get("references", []), start=1):
        yield f"PAPER{number}", _ascii(work["title"]), "please cite"
    for number, (_, paper) in enumerate(cited_papers(citation), start=1):
        yield f"CITE{number}", _ascii(str(paper)), "please cite"
        if paper.doi:
            yield f"DOI{number}", _ascii(paper.doi), f"of CITE{number}"
    for number, item in enumerate(meta.get("inputs", [])[:_INPUTS], start=1):
        yield f"INPUT{number}", _ascii(item["name"]), "table that was fitted"
        yield f"SHA{number}", _ascii(item["sha256"]), ""


def _ascii(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(c if " " <= c <= "~" else "" for c in decomposed)


def read_provenance(header: fits.Header, source: Path) -> dict[str, Any]:
    """Join the provenance that :func:`empty_primary` put into HISTORY."""
    lines = [str(line) for line in cast(Any, header.get("HISTORY", []))]
    try:
        start = lines.index(_OPENING) + 1
        meta = json.loads("".join(lines[start : lines.index(_CLOSING, start)]))
    except ValueError as error:
        raise InputError(
            f"{source}: its HISTORY holds no provenance of this program"
        ) from error
    if not isinstance(meta, dict):
        raise InputError(f"{source}: the provenance in its HISTORY is no table")
    return meta


def write_hdus(
    path: str | os.PathLike[str], hdus: fits.HDUList, *, overwrite: bool
) -> None:
    """Write the units with checksums, atomically, after astropy's strict check."""
    # Without the count, a file cut between two units would look whole.
    cast(Any, hdus)[0].header["NEXTEND"] = (len(hdus) - 1, "number of extensions")
    with atomic_file(path, overwrite=overwrite) as temporary:
        hdus.writeto(temporary, checksum=True, output_verify="exception")


@contextmanager
def open_checked(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a FITS file whose every unit has checksums that hold.

    Yields astropy's ``HDUList``, whose items have no static type.

    Raises
    ------
    InputError
        If the file is absent, not FITS, truncated, breaks the standard, lacks a
        checksum, or does not match one.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} is no file")
    with source.open("rb") as stream:
        if stream.read(9) != b"SIMPLE  =":
            raise InputError(f"{source} is no FITS file: it does not begin with SIMPLE")
        stream.seek(0)
        yield _load(stream, source)


def _load(stream: BinaryIO, source: Path) -> fits.HDUList:
    try:
        with warnings.catch_warnings():
            # astropy only warns of a truncated file.
            warnings.simplefilter("error")
            hdus = fits.open(stream, memmap=False, lazy_load_hdus=False)
            hdus.verify("exception")
            _check_sums(stream, hdus, source)
    except InputError:
        raise
    except (Warning, OSError, VerifyError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"{source} is damaged: {reason}. Restore it from a copy or write it again"
        ) from error
    return hdus


def _check_sums(stream: BinaryIO, hdus: Any, source: Path) -> None:
    for index, hdu in enumerate(hdus):
        for keyword in ("CHECKSUM", "DATASUM"):
            if keyword not in hdu.header:
                raise InputError(
                    f"{source}: unit {index} ({hdu.name or 'unnamed'}) has no "
                    f"{keyword}; expected a file that this program wrote"
                )
        place = hdu.fileinfo()
        end = place["datLoc"] + place["datSpan"]
        if _ones_complement_sum(stream, place["hdrLoc"], end) != _WHOLE:
            raise InputError(
                f"{source} is damaged: the checksum of unit {index} "
                f"({hdu.name or 'unnamed'}) fails. Restore it from a copy or write it "
                "again"
            )
    expected = hdus[0].header.get("NEXTEND")
    if expected != len(hdus) - 1:
        raise InputError(
            f"{source} has {len(hdus) - 1} extensions where its NEXTEND says "
            f"{expected}. Restore it from a copy or write it again"
        )


def _ones_complement_sum(stream: BinaryIO, start: int, end: int) -> int:
    """Add up 32-bit words as the FITS standard (4.4.2.7) does.

    Over the bytes themselves: astropy sums the header as it understood it, which
    leaves out what lies beyond the END card.
    """
    position = stream.tell()
    stream.seek(start)
    total = 0
    while start < end and (block := stream.read(min(end - start, _BLOCK))):
        start += len(block)
        total += int(np.frombuffer(block, dtype=">u4").sum(dtype=np.uint64))
    stream.seek(position)
    while total >> 32:
        total = (total & _WHOLE) + (total >> 32)
    return total


def _split(text: str) -> list[str]:
    # FITS drops trailing blanks of a card, so a blank at the end of a piece is
    # spelt as JSON's escape (blanks occur only inside strings here).
    width = _CARD - len(_SPACE) + 1
    pieces = [text[start : start + width] for start in range(0, len(text), width)]
    return [
        piece[:-1] + _SPACE if piece.endswith(" ") else piece  # a full card at most
        for piece in pieces
    ]
