"""Small maps in the layouts of other programs, from numbers that a test also has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import healpy
import numpy as np
from astropy.io import fits

SHAPE = (9, 11, 7)
FIRST, STEP = np.array([-40.0, -50.0, -30.0]), 10.0
NSIDE, EDGES = 4, np.geomspace(69.0, 200.0, 7)
CENTRES = np.sqrt(EDGES[1:] * EDGES[:-1])
E_ZGR = "E of Zhang, Green, and Rix (2023)"
MODULI = np.arange(4.0, 10.0, 0.5)


def values(shape: tuple[int, ...], seed: int = 0, scale: float = 1e-3) -> np.ndarray:
    return (scale * np.random.default_rng(seed).random(shape)).astype(np.float32)


CUBE = values(SHAPE[::-1])  # z, y, x
MEAN, STD = values((6, 192), 1), values((6, 192), 2, 1e-4)
INNER = values((1, 192), 3, 1e-2)
SAMPLES = np.cumsum(values((60, 5, len(MODULI)), 4, 0.1), axis=-1)


def fits_cube(path: Path, unit: str = "mag/pc", scale: str = "pc", **more: Any) -> Path:
    size = {"pc": 1.0, "kpc": 1e-3}[scale]
    image = fits.ImageHDU(CUBE, name="MEAN")
    for number, axis in enumerate("XYZ", start=1):
        cards = {"CTYPE": axis, "CUNIT": scale, "CRPIX": 1.0}
        cards |= {"CRVAL": FIRST[number - 1] * size, "CDELT": STEP * size}
        image.header.update({f"{k}{number}": v for k, v in cards.items()})
    image.header["BUNIT"] = unit
    image.header.update(more)
    spread = fits.ImageHDU(0.1 * CUBE, image.header, name="STD.")
    fits.HDUList([fits.PrimaryHDU(), image, spread]).writeto(path)
    return path


def bare_cube(path: Path, **cards: Any) -> Path:
    """Write the layout of EXPLORE (Vergely 2022) where the cards say so."""
    unit = fits.PrimaryHDU(CUBE)
    unit.header.update(cards)
    unit.writeto(path)
    return path


def explore_cards() -> dict[str, Any]:
    sun = 0.5 - FIRST / STEP
    where = {f"SUN_POS{axis}": place for axis, place in zip("XYZ", sun)}
    return {**where, "STEP": STEP, "UNIT": "A0(550nm)/parsec"}


def explore_hdf5(path: Path, *, rolled: bool = False) -> Path:
    sun = 0.5 - FIRST / STEP
    with h5py.File(path, "w") as file:
        data = file.create_dataset("explore/cube_datas", data=CUBE.T)
        data.attrs["sun_position"] = np.roll(sun, 1) if rolled else sun
        data.attrs["gridstep_values"] = np.full(3, STEP)
        data.attrs["values_unit"] = "magnitude/parsec"
    return path


def healpix_by_distance(
    path: Path, *, ring: bool = False, inner: bool = True, unit: str = E_ZGR
) -> Path:
    """Write the layout of Edenhofer et al. 2024."""

    def image(data: np.ndarray, name: str, kind: str = "") -> fits.ImageHDU:
        if ring:
            data = data[:, healpy.ring2nest(NSIDE, np.arange(data.shape[-1]))]
        found = fits.ImageHDU(data, name=name)
        found.header["NSIDE"] = NSIDE
        found.header["ORDERING"] = "RING" if ring else "NEST"
        if unit:
            found.header["CUNIT"] = unit
        if kind:
            found.header["CTYPE"] = f"{kind} integrated within 69.0 pc"
        return found

    def table(name: str, data: np.ndarray) -> fits.BinTableHDU:
        column = fits.Column(name, "D", unit="pc", array=data)
        return fits.BinTableHDU.from_columns([column])

    units = [image(MEAN, "MEAN"), image(STD, "STD.")]
    units += [table("radial pixel centers", CENTRES)]
    units += [table("radial pixel boundaries", EDGES)]
    if inner:
        units += [image(INNER, "MEAN OF INTEGRATED INNER", "inner density")]
        name = "STD. OF INTEGRATED INNER"
        units += [image(0.1 * INNER, name, "Std. of inner density")]
    fits.HDUList([fits.PrimaryHDU(), *units]).writeto(path)
    return path


def healpix_samples(path: Path, count: int = 4, *, inner: bool = True) -> Path:
    """Write the layout of the samples of Edenhofer et al. 2024."""
    spread = 1 + 0.1 * np.arange(count)[:, None, None]
    units = [fits.PrimaryHDU(spread * MEAN)]
    if inner:
        units.append(fits.ImageHDU(spread[:, 0] * INNER, name="INTEGRATED INNER"))
        units[-1].header["CTYPE"] = "inner density integrated within 69.0 pc"
    for each in units:
        each.header["NSIDE"], each.header["ORDERING"] = NSIDE, "NEST"
        each.header["CUNIT"] = E_ZGR
    for name, data in (
        ("radial pixel centers", CENTRES),
        ("radial pixel boundaries", EDGES),
    ):
        column = fits.Column(name, "D", unit="pc", array=data)
        units.append(fits.BinTableHDU.from_columns([column]))
    fits.HDUList(units).writeto(path)
    return path


def bayestar(path: Path) -> Path:
    """Write pixels of three resolutions, over a part of the sky."""
    kind = [("nside", "u4"), ("healpix_index", "u8"), ("n_stars", "u4")]
    kind += [("converged", "u1"), ("DM_reliable_min", "f4"), ("DM_reliable_max", "f4")]
    info = np.zeros(60, dtype=kind)
    info["nside"], info["healpix_index"] = 2, np.arange(60) - 12
    info["nside"][:4], info["healpix_index"][:4] = 1, np.arange(4)
    info["nside"][4:12], info["healpix_index"][4:12] = 8, 700 + np.arange(8)
    info["nside"][12 + 24 :] = 4
    info["healpix_index"][12 + 24 :] = 16 * 12 - 1 - np.arange(24)
    info["converged"] = np.arange(60) % 2
    info["DM_reliable_min"], info["DM_reliable_max"] = 6.0, 8.0
    with h5py.File(path, "w") as file:
        file["pixel_info"], file["samples"] = info, SAMPLES
        file["best_fit"] = SAMPLES[:, 0]
        file["pixel_info"].attrs["DM_bin_edges"] = MODULI
    return path
