"""Small maps in the layouts that the package dustmaps reads."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from astropy.io import fits

NSIDE = 4
EDGES = np.geomspace(69.0, 1250.0, 9)
CENTRES = np.sqrt(EDGES[1:] * EDGES[:-1])
MODULI = np.arange(4.0, 12.0, 0.25)


def edenhofer(path: Path) -> None:
    """Write densities that fall outwards, in the layout of Zenodo 8187943."""
    mean = np.repeat(1e-3 * (200.0 / CENTRES)[:, None], 12 * NSIDE**2, axis=1)

    def image(data: np.ndarray, name: str, kind: str = "") -> fits.ImageHDU:
        unit = fits.ImageHDU(data.astype("f4"), name=name)
        unit.header["NSIDE"], unit.header["ORDERING"] = NSIDE, "NEST"
        unit.header["CUNIT"] = "E of Zhang, Green, and Rix (2023)"
        if kind:
            unit.header["CTYPE"] = f"{kind} integrated within 69.0 pc"
        return unit

    def table(name: str, data: np.ndarray) -> fits.BinTableHDU:
        column = fits.Column(name, "D", unit="pc", array=data)
        return fits.BinTableHDU.from_columns([column])

    inner = np.full(12 * NSIDE**2, 0.05)
    units = [image(mean, "MEAN"), image(0.1 * mean, "STD.")]
    units += [table("radial pixel centers", CENTRES)]
    units += [table("radial pixel boundaries", EDGES)]
    units += [image(inner, "MEAN OF INTEGRATED INNER", "inner density")]
    units += [image(0.1 * inner, "STD. OF INTEGRATED INNER", "Std. of inner density")]
    fits.HDUList([fits.PrimaryHDU(), *units]).writeto(path)


def bayestar(path: Path, count: int) -> None:
    """Write samples that rise with the distance modulus, all over the sky."""
    kind = [("nside", "u4"), ("healpix_index", "u8"), ("n_stars", "u4")]
    kind += [("converged", "u1"), ("DM_reliable_min", "f4"), ("DM_reliable_max", "f4")]
    info = np.zeros(12, dtype=kind)
    info["nside"], info["healpix_index"], info["converged"] = 1, np.arange(12), 1
    moduli = MODULI[0] + 0.25 * np.arange(count)
    spread = np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    samples = 0.1 * spread[None, :, None] * (moduli - 3.0) * np.ones((12, 1, 1))
    with h5py.File(path, "w") as file:
        file["pixel_info"], file["samples"] = info, samples.astype("f4")
        file["best_fit"] = samples[:, 2].astype("f4")
        file["pixel_info"].attrs["DM_bin_edges"] = moduli
