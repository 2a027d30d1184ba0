"""FITS files: provenance in HISTORY, checksums on reading, and cubes.

A cube is an empty primary unit and one float32 image per field.
"""

from __future__ import annotations

import json
import math
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from astropy.io import fits
from astropy.io.fits.verify import VerifyError

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, FRAME, Cube, field_title, field_unit
from pipelines.cubes.sky import Curves, SkyMaps
from pipelines.formats.citation import cited_papers, doi_of, provenance_text
from pipelines.storage.atomic import AnyPath, atomic_file

_OPENING = "PROVENANCE AS JSON, LINES TO BE JOINED:"
_CLOSING = "END OF PROVENANCE"
_CURVES = ("EXTINCTION_MEAN", "DISTANCE", "LAST_STAR")


def write_hdus(
    path: AnyPath,
    units: Sequence[Any],
    meta: dict[str, Any],
    summary: str,
    *,
    overwrite: bool,
) -> None:
    """Write units after an empty one whose HISTORY has ``summary`` and provenance.

    Program, band, conversion, catalogues and inputs also have cards. Every unit has
    checksums, after astropy's strict check.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or cannot be
    written; `ValueError` if the provenance is not JSON.
    """
    primary = fits.PrimaryHDU()
    for keyword, value, comment in _cards(meta):
        if isinstance(value, str):
            decomposed = unicodedata.normalize("NFKD", value)
            value = "".join(c for c in decomposed if " " <= c <= "~")
        if value != "":
            primary.header[keyword] = (value, comment)
    # FITS drops trailing blanks of a card's 72 letters: write them as JSON escapes
    # (blanks occur only inside strings here).
    text, space = provenance_text(meta), "\\u0020"
    width = 72 - len(space) + 1
    pieces = [text[start : start + width] for start in range(0, len(text), width)]
    pieces = [p[:-1] + space if p.endswith(" ") else p for p in pieces]
    for line in (summary, _OPENING, *pieces, _CLOSING):
        primary.header.add_history(line)
    # The count reveals a file truncated between two units.
    primary.header["NEXTEND"] = (len(units), "number of extensions")
    with atomic_file(path, overwrite=overwrite) as temporary:
        hdus = fits.HDUList([primary, *units])
        hdus.writeto(temporary, checksum=True, output_verify="exception")


def _cards(meta: dict[str, Any]) -> Iterator[tuple[str, str | float, str]]:
    """Yield cards on origin, band and citation, if known."""
    yield "CREATOR", meta.get("program", ""), "program that made this map"
    yield "EXTBAND", meta.get("extinction_band", ""), "band of the extinction"
    if changes := meta.get("band_conversions"):
        yield "BANDFROM", changes[0]["source"], "band of the catalogue"
        factor = math.prod(change["factor"] for change in changes)
        yield "BANDFAC", factor, "EXTBAND / BANDFROM"
        for number, change in enumerate(changes, start=1):
            end = str(number) if number > 1 else ""
            curve = f"CURVE{end}" if end else "EXTCURVE"
            yield curve, change["curve"], change["package"]
            yield f"R_V{end}", change["r_v"], "A_V / E(B-V)"
            yield f"AT_AV{end}", change.get("at_av", ""), "[mag] A_V of this factor"
            yield f"STAR_T{end}", change.get("temperature", ""), "[K] of the black body"
    citation = meta.get("citation") or {}
    yield "LICENSE", citation.get("software", {}).get("license", ""), "of the program"
    for number, work in enumerate(citation.get("references", []), start=1):
        yield f"PAPER{number}", work["title"], "please cite"
    for number, (_, paper) in enumerate(cited_papers(citation), start=1):
        yield f"CITE{number}", paper, "please cite"
        yield f"DOI{number}", doi_of(paper), f"of CITE{number}"
    # HISTORY lists all inputs.
    for number, item in enumerate(meta.get("inputs", [])[:99], start=1):
        yield f"INPUT{number}", item["name"], "table that was fitted"


def read_provenance(header: fits.Header, source: Path) -> dict[str, Any]:
    """Return the provenance from the HISTORY of :func:`write_hdus`."""
    lines = [str(line) for line in cast(Any, header.get("HISTORY", []))]
    try:
        start = lines.index(_OPENING) + 1
        return dict(json.loads("".join(lines[start : lines.index(_CLOSING, start)])))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{source}: its HISTORY holds no provenance of this program"
        ) from error


def filled_by_another(source: Path, meta: dict[str, Any]) -> InputError:
    """Return the error for an export of an earlier version with parts of two maps."""
    return InputError(
        f"{source} was continued by another map with --fill of "
        f"{meta.get('program', 'an earlier version')}, which this version does not "
        "read: export the run again"
    )


def is_own(head: bytes) -> bool:
    """Return true if a file that begins like this is one of this program.

    Either mark is enough, so that an altered file is not taken for another program's.
    """
    return _OPENING.encode() in head or b"CREATOR = 'dustmap" in head


@contextmanager
def open_checked(path: AnyPath) -> Iterator[Any]:
    """Open a FITS file and verify the checksums of every unit.

    Yields astropy's ``HDUList``, whose items have no static type.

    Raises `InputError` if the file is absent, not FITS, truncated, breaks the standard,
    or does not match a checksum.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} is not a file: expected a FITS file")
    with source.open("rb") as stream:
        if stream.read(9) != b"SIMPLE  =":
            raise InputError(
                f"{source} is not a FITS file: it does not begin with SIMPLE"
            )
        stream.seek(0)
        try:
            with warnings.catch_warnings():
                # astropy only warns about a truncated or altered file.
                warnings.simplefilter("error")
                how: Any = {"memmap": False, "lazy_load_hdus": False, "checksum": True}
                hdus: Any = fits.open(stream, **how)
                hdus.verify("exception")
            expected, found = hdus[0].header.get("NEXTEND"), len(hdus) - 1
            if expected != found:
                raise ValueError(f"{found} extensions, where NEXTEND says {expected}")
        except (Warning, OSError, VerifyError, ValueError, TypeError, KeyError) as e:
            reason = " ".join(str(e).split()).rstrip(".")
            raise InputError(
                f"{source} is damaged: {reason}. Restore it from a copy or write it "
                "again"
            ) from e
        yield hdus


def write_fits(
    path: AnyPath, cube: Cube, curves: Curves | None = None, *, overwrite: bool = False
) -> None:
    """Write ``cube`` as images ``MEAN``, ``STD``, ``SUPPORT`` (upper-cased names).

    Images are uncompressed float32 (tile compression loses digits of floats), FITS
    axes 1, 2, 3 are x, y, z with a linear WCS [pc], and ``BUNIT`` is the cube's unit,
    blank where the field is dimensionless. Finer cubes have the same names and the next
    ``EXTVER``, of the coarsest 1. The mean of the curves is ``EXTINCTION_MEAN``, on
    HEALPix pixels (axis 1, NESTED) and ``DISTANCE`` (axis 2), beside ``LAST_STAR``.
    Every unit has CHECKSUM and DATASUM, and the primary unit has the provenance in
    HISTORY.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or cannot be
    written; `ValueError` if the provenance is not JSON, or a field's name is not lower
    case.
    """
    images = []
    for version, level in enumerate(cube.levels, start=1):
        for name, array in level.arrays.items():
            if not name.isidentifier() or name != name.lower():
                raise ValueError(f"array name {name!r} must be a lower-case identifier")
            data = np.asarray(array, dtype=np.float32)
            image = fits.ImageHDU(data, name=name.upper(), ver=version)
            unit, title = field_unit(name, level.unit), field_title(name)[:45]
            image.header["BUNIT"] = (unit, title)
            image.header["WCSNAME"] = "Heliocentric Galactic"
            for number, axis in enumerate(AXES, start=1):
                centres = getattr(level, axis)
                step = (centres[-1] - centres[0]) / (len(centres) - 1)
                image.header.update(
                    {
                        f"CTYPE{number}": (axis.upper(), FRAME["axes"][axis][:45]),
                        f"CUNIT{number}": "pc",
                        f"CRPIX{number}": (1.0, "centre of the first cell"),
                        f"CRVAL{number}": (float(centres[0]), "[pc]"),
                        f"CDELT{number}": (float(step), "[pc] cell size"),
                    }
                )
            images.append(image)
    if curves is not None:
        mean = curves.arrays["mean"].T.astype(np.float32)
        held = mean, curves.distances, curves.last_star
        for name, unit, data in zip(_CURVES, ("mag", "pc", "pc"), held, strict=True):
            images.append(fits.ImageHDU(data, name=name))
            images[-1].header["BUNIT"] = unit
        cards = {"ORDERING": "NESTED", "COORDSYS": "G", "NSIDE": curves.nside}
        images[-3].header.update({**cards, "ESTIMATE": curves.meta.get("estimate", "")})
    summary = "Three-dimensional map of interstellar dust, heliocentric Galactic frame"
    write_hdus(path, images, cube.meta, summary, overwrite=overwrite)


def read_fits(path: AnyPath) -> Cube:
    """Return the cube of `read_cube_and_curves`."""
    return read_cube_and_curves(path)[0]


def read_cube_and_curves(path: AnyPath) -> tuple[Cube, SkyMaps | None]:
    """Read a cube and curves by :func:`write_fits`, with checksums (float32).

    Raises `InputError` if the file is absent, truncated, altered or not a cube of this
    program.
    """
    source = Path(path)
    with open_checked(source) as hdus:
        meta, curves = read_provenance(hdus[0].header, source), None
        held = {unit.name: unit for unit in hdus[1:] if unit.name in _CURVES}
        images = [unit for unit in hdus[1:] if unit.name not in _CURVES]
        if len(held) == len(_CURVES):
            mean, far, last = (np.asarray(held[name].data) for name in _CURVES)
            curves = SkyMaps(
                distances=far.astype(np.float64),
                arrays={"mean": mean.astype(np.float32)},
                last_star=last.astype(np.float64),
                meta={**meta, "estimate": held[_CURVES[0]].header.get("ESTIMATE", "")},
            )
        if not images or not all(isinstance(hdu, fits.ImageHDU) for hdu in images):
            raise InputError(f"{source}: expected image units only, one per field")
        if any(image.name == "FILLED" for image in images):
            raise filled_by_another(source, meta)
        cubes = [
            _read_level([i for i in images if i.ver == version], meta, source)
            for version in sorted({image.ver for image in images})
        ]
        return replace(cubes[0], finer=tuple(cubes[1:])), curves


def _read_level(images: list[Any], meta: dict[str, Any], source: Path) -> Cube:
    """Read the cube of images on one grid."""
    grids = [_read_axes(image.header, source) for image in images]
    if any(not np.array_equal(g[a], grids[0][a]) for g in grids for a in AXES):
        raise InputError(f"{source}: expected images of one EXTVER on one grid")
    units = {str(i.header.get("BUNIT", "")).strip() for i in images} - {""}
    if len(units) != 1:
        raise InputError(f"{source}: expected one BUNIT, found {sorted(units)}")
    arrays = {i.name.lower(): np.asarray(i.data, dtype=np.float32) for i in images}
    try:
        x, y, z = (grids[0][axis] for axis in AXES)
        return Cube(x=x, y=y, z=z, arrays=arrays, unit=units.pop(), meta=meta)
    except ValueError as error:
        raise InputError(f"{source} is not a cube: {error}") from error


def _read_axes(header: Any, source: Path) -> dict[str, np.ndarray]:
    axes = {}
    for number, axis in enumerate(AXES, start=1):
        kind, unit = header.get(f"CTYPE{number}"), header.get(f"CUNIT{number}")
        if header.get("NAXIS") != 3 or kind != axis.upper() or unit != "pc":
            raise InputError(
                f"{source}: expected a cube with axis {number} = {axis.upper()} [pc], "
                f"found {header.get('NAXIS')} axes, {kind} [{unit}]"
            )
        cells = np.arange(1, header[f"NAXIS{number}"] + 1, dtype=np.float64)
        offset = cells - header[f"CRPIX{number}"]
        axes[axis] = header[f"CRVAL{number}"] + offset * header[f"CDELT{number}"]
    return axes
