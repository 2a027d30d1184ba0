"""Every remedy in a message of an ingestion works when it is typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars

N = 400
_rng = np.random.default_rng(3)
SKY = SkyCoord(
    _rng.uniform(0, 360, N) * u.deg, np.arcsin(_rng.uniform(-1, 1, N)) * u.rad
)
DISTANCE = _rng.uniform(100, 3000, N)
UNKNOWN = np.arange(N) % 10 == 0
UNITS = {"ra": "deg", "dec": "deg", "distance": "pc", "extinction": "mag"}
UNITS |= {"extinction_error": "mag"}
_REMEDY = re.compile(r"--([a-z-]+)(?: ('[^']+'|[^\s,;:]+(?::\w+)?))?")


def table(**changes: Any) -> Table:
    held: Any = Table({"ra": SKY.ra.deg, "dec": SKY.dec.deg, "distance": DISTANCE})
    held["extinction"], held["extinction_error"] = DISTANCE / 1500 + 0.1, 0.05
    for name, unit in UNITS.items():
        held[name].unit = unit
    for name, values in changes.items():
        if values is None:
            held.remove_column(name)
        else:
            held[name] = values
    return held


def renamed(old: str, new: str, **changes: Any) -> Table:
    held = table(**changes)
    held.rename_column(old, new)
    return held


def jittered(scale: float) -> np.ndarray:
    unknown = 1e5 + _rng.uniform(-0.5, 0.5, N)
    return np.where(UNKNOWN, unknown, DISTANCE) * scale


HOURS, RADIANS = SKY.ra.deg / 15, SKY.ra.rad
CASES: dict[str, tuple[Table, list[str], dict[str, Any]]] = {
    "hours": (table(ra=HOURS * u.deg), [], {}),
    "hours of another name": (renamed("ra", "R A", ra=HOURS), ["ra=R A:deg"], {}),
    "hours in the file": (table(ra=HOURS * u.h), [], {}),
    "radians": (table(ra=RADIANS * u.deg, dec=SKY.dec.rad * u.deg), [], {}),
    "radians of another name": (
        renamed("ra", "_RA.icrs", ra=RADIANS, dec=SKY.dec.rad),
        ["ra=_RA.icrs:deg", "dec=dec:deg"],
        {},
    ),
    "no unit": (table(distance=DISTANCE / 1000), [], {}),
    "an odd unit": (table(distance=DISTANCE / 1000 * u.m / u.s), [], {}),
    "an unlikely extinction": (table(extinction=DISTANCE / 3 * u.mag), [], {}),
    "too far": (table(distance=DISTANCE * u.kpc), [], {}),
    "another unit is stated": (table(), ["distance=distance:kpc"], {}),
    "a constant without a unit": (table(), ["extinction_error=0.05"], {}),
    "a missing column": (renamed("distance", "d"), [], {}),
    "logarithms without a bracket": (
        table(distance=np.log10(DISTANCE) * u.dB(u.pc)),
        [],
        {},
    ),
    "a colour excess": (renamed("extinction", "EBV"), ["extinction=EBV:mag"], {}),
    "an unlikely median": (table(distance=DISTANCE / 1000 * u.pc), [], {}),
    "an odd end": (
        table(distance=np.where(UNKNOWN, 5000.0, DISTANCE) * u.pc),
        [],
        {},
    ),
    "many faults": (table(distance=np.where(UNKNOWN, 100, -1.0) * u.pc), [], {}),
    "repeats without identifiers": (
        table(number=np.arange(N)),
        [],
        {"repeats": "first"},
    ),
}


def options_of(message: str, held: Table) -> dict[str, Any]:
    """Return the options that a message advises, the first of alternatives."""
    found: dict[str, Any] = {"mappings": []}
    missing = next((n for n in ("d", "number", "distance") if n in held.colnames), "d")
    for name, value in _REMEDY.findall(message):
        value = value.strip("'").rstrip(".").replace("COLUMN", missing)
        if name == "map" and value.partition("=")[2] not in ("none", ""):
            found["mappings"].append(value)
        elif name in ("any-range", "max-bad") and len(found) == 1:
            found |= {"any_range": True} if name == "any-range" else {"max_bad": 1.0}
        elif name in ("where", "declare-band") and value:
            found.setdefault(name.replace("-", "_"), value.replace("VALUE", "5000"))
    # What was wrong may be quoted before.
    latest = {text.partition("=")[0]: text for text in found["mappings"]}
    found["mappings"] = list(latest.values())
    if found["mappings"] or "where" in found:
        found.pop("any_range", None)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_remedy_of_a_refusal_works(case: str, tmp_path: Path) -> None:
    held, mappings, options = CASES[case]
    out = tmp_path / "out.parquet"
    with pytest.raises(InputError) as refused:
        dustmap.ingest(held, out, mappings=mappings, **options)
    advised = options_of(str(refused.value), held)
    assert advised != {"mappings": []}, refused.value
    names = [text.partition("=")[0] for text in advised["mappings"]]
    kept = [text for text in mappings if text.partition("=")[0] not in names]
    advised["mappings"] += kept
    dustmap.ingest(held, out, **{**options, **advised})
    if "hours" in case or "radians" in case:
        stars = read_stars(out)
        places = SkyCoord(stars.l * u.deg, stars.b * u.deg, frame="galactic")
        found: Any = places.separation(SKY)
        assert found.max() < 1e-8 * u.deg


@pytest.mark.parametrize("unit", ["h", "hourangle"])
def test_hours_are_stated_by_either_unit(unit: str, tmp_path: Path) -> None:
    held = table(ra=HOURS)
    dustmap.ingest(held, tmp_path / "o.parquet", mappings=[f"ra=ra:{unit}"])
    stars: Any = read_stars(tmp_path / "o.parquet")
    places: Any = SkyCoord(stars.l * u.deg, stars.b * u.deg, frame="galactic")
    assert places.separation(SKY).max() < 1e-8 * u.deg


@pytest.mark.parametrize(("name", "unit"), [("distance", "pc"), ("d (kpc)", "kpc")])
def test_jittered_marks_are_warned_of_and_dropped_as_advised(
    name: str, unit: str, tmp_path: Path
) -> None:
    held = table(distance=jittered(1.0 if unit == "pc" else 1e-3) * u.Unit(unit))
    held.rename_column("distance", name)
    out, maps = tmp_path / "o.parquet", [f"distance={name}"]
    report = dustmap.ingest(held, out, mappings=maps)
    (warned,) = [note for note in report.notes if "far above" in note]
    assert f"{UNKNOWN.sum()} rows" in warned and report.rows_kept == N
    where = re.search(r"--where '?([^']+)'?", warned)
    assert where is not None
    report = dustmap.ingest(held, out, mappings=maps, where=where[1], overwrite=True)
    assert report.rows_kept == N - UNKNOWN.sum()
    assert not [note for note in report.notes if "far above" in note]


def test_a_cloud_of_distances_far_away_is_no_mark(tmp_path: Path) -> None:
    """Stars of the Magellanic Clouds have distances as wide as their depth."""
    far = np.where(UNKNOWN, _rng.normal(5e4, 2e3, N), DISTANCE)
    report = dustmap.ingest(table(distance=far * u.pc), tmp_path / "o.parquet")
    assert not [note for note in report.notes if "far above" in note]
