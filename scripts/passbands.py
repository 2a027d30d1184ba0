"""Write pipelines/bands/passbands.toml from tables of the passbands' responses.

    python scripts/passbands.py FILTERS K_TABLE > pipelines/bands/passbands.toml

FILTERS is speclite/data/filters of the package speclite 1.0.0 (BSD-3-Clause), K_TABLE
pyphot/libs/ascii_sources/ground_bessell_k.csv of pyphot 2.1.1 (MIT).
"""

import sys
from pathlib import Path

import numpy as np
from astropy import units as u
from astropy.table import Table

# By origin: group of speclite, power of the wavelength, nodes by band. A response per
# photon is multiplied by the wavelength once, one per energy is not.
ORIGINS = {
    "per energy: Bessell 1990, PASP 102, 1181": (
        "bessell",
        0,
        {"U": 8, "R": 10, "I": 8},
    ),
    "per energy: Bessell & Brett 1988, PASP 100, 1134": ("", 0, {"K": 8}),
    "per energy, 2MASS: Cohen, Wheaton & Megeath 2003, AJ 126, 1090": (
        *("twomass", 0),
        {"J": 8, "H": 8, "Ks": 8},
    ),
    "per photon, WISE: Wright et al. 2010, AJ 140, 1868": (
        *("wise2010", 1),
        {"W1": 8, "W2": 8},
    ),
    "per photon, Gaia (E)DR3: Riello et al. 2021, A&A 649, A3": (
        *("gaiadr3", 1),
        {"G": 24, "BP": 24, "RP": 16},
    ),
    "per photon, SDSS at airmass 1.3: Doi et al. 2010, AJ 139, 1628": (
        *("sdss2010", 1),
        {f"{band}(SDSS)": 8 for band in "ugriz"},
    ),
    "per photon, Pan-STARRS1: Tonry et al. 2012, ApJ 750, 99": (
        *("panstarrs", 1),
        {f"{band}(PS1)": 8 for band in "grizy"},
    ),
}
HEAD = """\
# Passbands: Gauss nodes [nm] and weights of the response, so that the sum of weight
# times f(node) is the mean of a smooth f over the passband (scripts/passbands.py). The
# name of a table says who published the response, and whether it is one per energy or
# per photon, which then was multiplied by the wavelength. V and B are A_V and
# A_V (1 + 1/R_V) by definition.

["by definition"]
V = [[], []]
B = [[], []]

["monochromatic by definition: Andrae et al. 2023, A&A 674, A27"]
0 = [[541.4], [1.0]]
"""


def gauss(nm: np.ndarray, response: np.ndarray, n: int) -> tuple[list, list]:
    """Return n Gauss nodes and weights, by Lanczos' recurrence on a fine grid."""
    fine = np.linspace(nm[0], nm[-1], 20_001)
    measure = np.maximum(np.interp(fine, nm, response), 0)
    centre, half = (nm[0] + nm[-1]) / 2, (nm[-1] - nm[0]) / 2
    x = (fine - centre) / half
    basis = [np.sqrt(measure / measure.sum())]
    diagonal, beside = [], []
    for _ in range(n):
        v = x * basis[-1]
        diagonal.append(v @ basis[-1])
        v -= np.sum([(q @ v) * q for q in basis], axis=0)
        beside.append(np.linalg.norm(v))
        basis.append(v / beside[-1])
    matrix = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    nodes, vectors = np.linalg.eigh(matrix)
    nodes = np.round(centre + half * nodes, 1)
    return [float(v) for v in nodes], [float(f"{v:.5g}") for v in vectors[0] ** 2]


def read(group: str, name: str, filters: Path, k_table: Path) -> np.ndarray:
    """Return wavelengths [nm] and responses."""
    if not group:
        table = np.loadtxt(k_table, delimiter=",", skiprows=9)
        return table.T * [[0.1], [1]]
    table = Table.read(filters / f"{group}-{name}.ecsv")
    wavelength = u.Quantity(table["wavelength"]).to_value(u.nm)
    return np.array([wavelength, table["response"]], dtype=float)


def main(filters: Path, k_table: Path) -> None:
    """Print the file."""
    print(HEAD, end="")
    for origin, (group, power, bands) in ORIGINS.items():
        print(f'\n["{origin}"]')
        for band, n in bands.items():
            nm, response = read(group, band.partition("(")[0], filters, k_table)
            nodes, weights = gauss(nm, response * nm**power, n)
            name = f'"{band}"' if "(" in band else band
            print(f"{name} = [\n  {nodes},\n  {weights},\n]")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
