"""The Ananke sample of the HIP-GP paper, its noise, and one fixed split.

Positions in kpc with the observer at the origin, extinctions in mag, densities in
mag/kpc (the file's solar masses per cubic parsec, divided by 0.20022).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from astropy.table import Table

from pipelines.base.errors import InputError

FILE = "ananke_5k.csv.gz"
NOISE = 0.005
_MASS_PER_EXTINCTION = 0.20022
_COLUMNS = ("x", "y", "z", "e", "density")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Stars without noise.

    Parameters
    ----------
    positions
        ``x, y, z`` [kpc], shape (n, 3).
    extinction
        Line-of-sight integral from the observer to the star [mag].
    density
        At the star [mag/kpc].
    """

    positions: np.ndarray
    extinction: np.ndarray
    density: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: np.ndarray) -> Sample:
        return Sample(
            positions=self.positions[rows],
            extinction=self.extinction[rows],
            density=self.density[rows],
        )


def default_folder() -> Path:
    """``$DUSTMAP_DATA``, or ``../shared/data`` beside the repository."""
    named = os.environ.get("DUSTMAP_DATA")
    if named:
        return Path(named)
    return Path(__file__).resolve().parents[3] / "shared" / "data"


def read_columns(file: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Finite numbers of a CSV file.

    Raises
    ------
    InputError
        If the file or a column is missing, or a number is not finite.
    """
    if not file.is_file():
        raise InputError(f"{file} is not a file")
    try:
        table = Table.read(file, format="ascii.csv")
        columns = [np.asarray(table[name], np.float64) for name in names]
    except KeyError as error:
        raise InputError(f"{file} has no column {error}, expected {names}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no table of numbers: {error}") from None
    faulty = ~np.all([np.isfinite(values) for values in columns], axis=0)
    if faulty.any():
        raise InputError(f"{file}: {faulty.sum()} of {len(faulty)} rows are not finite")
    return columns


def read_sample(path: Path) -> Sample:
    """Read the sample from a folder or a file.

    Raises
    ------
    InputError
        If the file or one of its columns is missing, or a number is not finite.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"no Ananke sample: {file} is not a file; give the folder of {FILE} by "
            "--data or $DUSTMAP_DATA"
        )
    x, y, z, extinction, density = read_columns(file, _COLUMNS)
    return Sample(
        positions=np.stack([x, y, z], axis=1),
        extinction=extinction,
        density=density / _MASS_PER_EXTINCTION,
    )


def split(
    sample: Sample, train: int, test: int, generator: np.random.Generator
) -> tuple[Sample, Sample]:
    """Draw stars to train on and others to test on.

    Raises
    ------
    InputError
        If there are too few stars.
    """
    if train + test > len(sample):
        raise InputError(
            f"the sample has {len(sample)} stars, {train} to train on and {test} to "
            "test on were expected"
        )
    order = generator.permutation(len(sample))
    return sample[order[:train]], sample[order[train : train + test]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Noisy extinctions and the standard deviation of each one's noise [mag]."""

    values: np.ndarray
    sigma: np.ndarray

    @classmethod
    def draw(cls, sample: Sample, generator: np.random.Generator) -> Observed:
        """The paper's recipe: ``σ ~ U(0.5, 1.5) · 0.005``, ``y = e + σ N(0, 1)``."""
        sigma = NOISE * generator.uniform(0.5, 1.5, len(sample))
        noise = sigma * generator.standard_normal(len(sample))
        return cls(values=sample.extinction + noise, sigma=sigma)
