"""Coordinates are transformed from the frame that their file states, by astropy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import (
    FK4,
    FK5,
    ICRS,
    AltAz,
    BarycentricMeanEcliptic,
    EarthLocation,
    FK4NoETerms,
    Galactic,
    Galactocentric,
    SkyCoord,
    Supergalactic,
)
from astropy.io import fits
from astropy.io.votable import from_table, tree
from astropy.table import QTable, Table
from astropy.time import Time

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars
from pipelines.catalog.tables import as_file
from pipelines.maps.places import places_of
from pipelines.query.targets import TargetTable

N = 30
_rng = np.random.default_rng(0)
PLACES = SkyCoord(
    l=_rng.uniform(0, 360, N) * u.deg,
    b=_rng.uniform(-80, 80, N) * u.deg,
    distance=_rng.uniform(100, 2000, N) * u.pc,
    frame="galactic",
)
EXTINCTION = {
    "extinction": np.linspace(0.1, 1, N) * u.mag,
    "extinction_error": np.full(N, 0.03) * u.mag,
}
ANGLES = ["ra=RA", "dec=DE", "distance=d"]
FRAMES: dict[str, Any] = {
    "fk4": FK4(equinox="B1950", obstime="J1984.5"),
    "fk5": FK5(equinox="J2050"),
    "icrs": ICRS(),
    "supergalactic": Supergalactic(),
    "galactocentric": Galactocentric(galcen_distance=8 * u.kpc),
}


def table(frame: Any, **meta: Any) -> QTable:
    sphere: Any = PLACES.transform_to(frame).spherical
    columns = {"RA": sphere.lon, "DE": sphere.lat, "d": PLACES.distance}
    return QTable({**columns, **EXTINCTION}, meta=meta)


def check(source: Any, folder: Path, mappings: list[str]) -> str:
    """Ingest a table, compare its places with the true ones, and return the report."""
    out = folder / "out.parquet"
    report = dustmap.ingest(source, out, mappings=mappings, overwrite=True)
    stars = read_stars(out)
    places = (stars.l * u.deg, stars.b * u.deg, stars.distance * u.pc)
    found: Any = SkyCoord(*places, frame="galactic").separation_3d(PLACES)
    assert found.max() < 1e-9 * u.pc
    return str(report)


FORMS: dict[str, Any] = {
    "memory": lambda held, _: held,
    "ecsv": lambda held, path: held.write(path),
    "fits": lambda held, path: held.write(path),
    "parquet": lambda held, path: held.write(path),
    "hdf5": lambda held, path: held.write(path, path="t", serialize_meta=True),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [(n, "memory") for n in FRAMES]
    + [(n, f) for n in ("fk4", "galactocentric") for f in FORMS if f != "memory"],
)
def test_columns_of_coordinates_are_in_their_own_frame(
    name: str, form: str, tmp_path: Path
) -> None:
    coords: Any = PLACES.transform_to(FRAMES[name])
    parts = list(coords.representation_component_names)
    names = ("x y z" if parts[0] == "x" else "ra dec distance").split()
    maps = [f"{name}=c.{part}" for name, part in zip(names, parts)]
    held, path = QTable({"c": coords, **EXTINCTION}), tmp_path / f"a.{form}"
    source = FORMS[form](held, path)
    assert f"{N} rows in the frame" in check(
        path if source is None else source, tmp_path, maps
    )
    with as_file(held) as file:
        rows = next(iter(TargetTable(path if source is None else file, maps)))
    found, expected = places_of(rows.coords), places_of(coords)
    assert np.array_equal(found.l, expected.l)
    assert np.array_equal(found.distance, expected.distance)


CARDS = [
    (FK4(), {"RADESYS": "FK4", "EQUINOX": 1950.0}),
    (FK4(), {"EQUINOX": "B1950"}),
    (FK4(), {"EPOCH": 1950.0}),
    (ICRS(), {"EPOCH": 2016.0}),
    (ICRS(), {"RADESYS": "ICRS", "EQUINOX": 2016.0}),
    (FK5(equinox="J1975"), {"RADECSYS": "FK5", "EQUINOX": 1975.0}),
    (FK5(equinox="J2050"), {"EQUINOX": 2050.0}),
    (FK4NoETerms(), {"RADESYS": "FK4-NO-E", "EQUINOX": 1950.0}),
    (FK5(equinox="J2050"), {"RADESYSA": "FK5", "EQUINOXA": 2050.0}),
]


@pytest.mark.parametrize(("frame", "cards"), CARDS)
def test_cards_of_fits_state_the_frame(frame, cards, tmp_path: Path) -> None:
    held = table(frame)
    first = fits.PrimaryHDU()
    first.header.update(cards)
    fits.HDUList([first, fits.table_to_hdu(held)]).writeto(tmp_path / "a.fits")
    check(tmp_path / "a.fits", tmp_path, ANGLES)


def test_cards_are_those_of_equatorial_coordinates_alone(tmp_path: Path) -> None:
    held = table(FK4(), RADESYS="FK4")
    held["GLON"], held["GLAT"] = PLACES.l, PLACES.b
    check(held, tmp_path, ["l=GLON", "b=GLAT", "distance=d"])
    held.write(tmp_path / "a.ecsv")
    for source in (held, tmp_path / "a.ecsv"):
        check(source, tmp_path, ANGLES)
    held.meta = {}
    held.write(tmp_path / "a.tbl", format="ascii.ipac")
    text = (tmp_path / "a.tbl").read_text()
    (tmp_path / "a.tbl").write_text(f"\\EQUINOX = 'B1950'\n{text}")
    check(tmp_path / "a.tbl", tmp_path, ANGLES)


SYSTEMS = [
    (FK4(obstime="B1984.5"), "eq_FK4", "B1950", "B1984.5"),
    (FK5(equinox="J2050"), "eq_FK5", "J2050", None),
    (ICRS(), "ICRS", None, "J2016.0"),
    (BarycentricMeanEcliptic(), "ecl_FK5", None, None),
]


@pytest.mark.parametrize("refers", [True, False])
@pytest.mark.parametrize(("frame", "system", "equinox", "epoch"), SYSTEMS)
def test_systems_of_votables_state_the_frame(
    frame, system, equinox, epoch, refers: bool, tmp_path: Path
) -> None:
    file = from_table(Table(table(frame)))
    own: Any = tree.CooSys(ID="own", system=system, equinox=equinox, epoch=epoch)
    file.resources[0].coordinate_systems.append(own)
    held = file.get_first_table()
    if refers:
        other: Any = tree.CooSys(ID="other", system="eq_FK4", equinox="B1875")
        file.resources[0].coordinate_systems.append(other)
        for field in held.fields[:2]:
            field.ref = "own"
    file.to_xml(str(tmp_path / "a.vot"))
    report = check(tmp_path / "a.vot", tmp_path, ANGLES)
    assert system in report and (epoch or "") in report


def test_names_state_an_old_equinox(tmp_path: Path) -> None:
    held = table(FK4())
    held.rename_columns(["RA", "DE"], ["RAB1950", "_DE1950"])
    check(held, tmp_path, ["ra=RAB1950", "dec=(_DE1950):deg", "distance=d"])


def test_frames_that_cannot_be_transformed_are_refused(tmp_path: Path) -> None:
    def refuse(source: Any, maps: list[str], match: str) -> None:
        with pytest.raises(InputError, match=match):
            dustmap.ingest(source, tmp_path / "out.parquet", mappings=maps)

    refuse(table(ICRS(), RADESYS="GAPPT"), ANGLES, "GAPPT")
    refuse(table(ICRS(), RADESYS="FK5", EQUINOX="autumn"), ANGLES, "autumn")
    centre = PLACES.transform_to(Galactocentric())
    centre.representation_type = "spherical"
    both = QTable({**table(ICRS()), "c": centre, "g": PLACES.transform_to(Galactic())})
    refuse(both, ["l=c.lon", "b=c.lat", "distance=d"], "centre")
    refuse(both, ["l=g.l", "b=c.lat", "distance=d"], "one frame")
    # The observer's horizon turns between the rows.
    times = Time(2020 + np.arange(N) / 10, format="jyear")
    above = AltAz(obstime=times, location=EarthLocation.from_geodetic(10, 50))
    both["h"] = SkyCoord(PLACES.l, PLACES.b, frame=above)
    refuse(both, ["ra=h.az", "dec=h.alt", "distance=d"], "AltAz")
