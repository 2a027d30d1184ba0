"""The frames that files state for their coordinates, in astropy's terms."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from astropy import units as u
from astropy.coordinates import BaseCoordinateFrame, SkyCoord
from astropy.table import Table

from pipelines.catalog.units import INPUT_UNITS

# Astropy's names of those in FITS and VOTables, by these in small letters and digits.
_NAMES = {name: name for name in ("icrs", "fk4", "fk5", "galactic", "supergalactic")}
_NAMES |= {"fk4noe": "fk4noeterms", "galacticii": "galactic"}
_NAMES |= dict.fromkeys(("ecliptic", "eclfk5"), "barycentricmeanecliptic")


class Stated(NamedTuple):
    """A frame in words, and as astropy has it or None if it cannot."""

    text: str
    frame: Any


Frames = dict[str, Stated]
"""Frames by column; "" is that of a table's right ascensions and declinations."""


def named(system: Any, equinox: Any = None, epoch: Any = None) -> Frames:
    """Return the frame of a name, or else of an equinox as in FITS, under ""."""
    name, turned, seen = (str(it or "").strip() for it in (system, equinox, epoch))
    if not name and turned:
        name = "FK4" if turned.lstrip("B") < "1984" else "FK5"
    key = re.sub(r"^eq_|[^a-z0-9]", "", name.lower())
    if key in ("", "unknown"):
        return {}
    letter = "B" if key.startswith("fk4") else "J"
    given = {part: t for part, t in (("equinox", turned), ("obstime", seen)) if t}
    words = [name, *(f"{part} {t}" for part, t in given.items())]
    moments: dict[str, Any] = {
        part: t if t[0] in "BJ" else letter + t for part, t in given.items()
    }
    try:
        sky: Any = SkyCoord(0, 0, unit="deg", frame=_NAMES[key], **moments)
    except (KeyError, ValueError):
        return {"": Stated(", ".join(words), None)}
    return {"": Stated(", ".join(words), sky.frame.replicate_without_data())}


def of_table(table: Table) -> Frames:
    """Return the frames of columns of coordinates and of FITS' cards in ``meta``.

    ``EPOCH`` is an equinox if it is one of FK4 or 2000, else the epoch of the stars.
    """
    meta: dict[Any, Any] = dict(table.meta or {})
    if isinstance(ipac := meta.get("keywords"), dict):
        meta |= {k: each["value"] for k, each in ipac.items() if "value" in each}
    cards = {str(key).upper(): value for key, value in meta.items()}
    cards["RADESYS"] = cards.get("RADESYS") or cards.get("RADECSYS")
    if re.fullmatch(r"(B?1[89][0-7]\d|J?2000)(\.0*)?", str(cards.get("EPOCH"))):
        cards.setdefault("EQUINOX", cards["EPOCH"])
    pairs = ((f"RADESYS{end}", f"EQUINOX{end}") for end in ("", *ascii_uppercase))
    stated = (named(*map(cards.get, pair)) for pair in pairs)
    found = next(filter(None, stated), {})
    for name, column in table.columns.items():
        if isinstance(column, SkyCoord | BaseCoordinateFrame):
            coords: Any = SkyCoord(column)
            frame = coords.frame.replicate_without_data()
            words = " ".join(repr(frame)[1:-1].replace(" Frame", "").split())
            # Of a frame that differs between rows only the words are kept.
            one = Stated(words, None if frame.shape else frame)
            found |= {f"{name}.{n}": one for n in coords.representation_component_names}
    return found


def of_header(header: Mapping[str, Any]) -> Frames:
    """Return frames as `of_table` from astropy's header of a table, in YAML."""
    # Astropy makes the coordinates from a table without rows.
    empty = {item["name"]: np.empty(0) for item in header["datatype"]}
    meta, text = dict(header.get("meta") or {}), io.StringIO()
    mixed = meta.pop("__serialized_columns__", {}).items()
    coords = {name: item for name, item in mixed if "SkyCoord" in str(item)}
    if not coords:
        return of_table(Table(meta=meta))
    meta["__serialized_columns__"] = coords
    Table(empty, meta=meta).write(text, format="ascii.ecsv")
    return of_table(Table.read(text.getvalue(), format="ascii.ecsv"))


def placed(values: Mapping[str, np.ndarray], frame: Any = None) -> SkyCoord:
    """Return coordinates ``x y z``, or ``l b`` or ``ra dec`` and maybe ``distance``.

    They are in canonical units and in a frame, by default the one of their names.
    """
    names = ("x", "y", "z") if "x" in values else ("l", "b", "ra", "dec", "distance")
    parts = [values[n] * u.Unit(INPUT_UNITS[n]) for n in names if n in values]
    kind = "cartesian" if "x" in values else "spherical"
    own = "icrs" if "ra" in values else "galactic"
    known = own if frame is None else frame
    return SkyCoord(*parts, frame=known, representation_type=kind)
