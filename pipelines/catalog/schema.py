"""The canonical table of stars, the input of fits and predictions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import healpy
import numpy as np
from scipy.spatial import KDTree

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.tables import read_batches, read_table, write_table
from pipelines.storage.atomic import AnyPath

if TYPE_CHECKING:
    import torch

    from dustmap.distributed.group import Group
    from pipelines.config import FitConfig

CANONICAL_UNITS = {
    "l": "deg",
    "b": "deg",
    "distance": "pc",
    "extinction": "mag",
    "extinction_error": "mag",
    "distance_error": "pc",
}
# Columns of names, not of numbers.
NAMES = ("source_id", "survey")
COLUMNS = (*NAMES, *CANONICAL_UNITS, "merged")
# Fewest stars for learning a residual.
FEWEST_VALIDATION = 50
# Of the pixels of places.
NSIDE = 256


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of a catalogue to fit, to learn the residual on, and to test the map."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """All rows except held-out ones: first ``train``, then ``validation``."""
        return np.concatenate([self.train, self.validation])

    def within(self, inside: np.ndarray) -> Split:
        """Return the rows inside a mask of all stars, in the same order."""
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        return Split(**{name: rows[inside[rows]] for name, rows in parts.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stars:
    """Stars with a distance, and usually an extinction.

    Columns have the shape ``(N,)``; canonical ones, with errors that are standard
    deviations, are float64 in `CANONICAL_UNITS`. Without an extinction there are only
    positions. ``source_id`` are integers or strings, ``survey`` names the catalogue of
    each star (``None`` if all are of one), ``merged`` is the effective number of stars
    of which a row is the mean, ``extra`` are further columns, ``units`` is by column,
    and ``meta`` the provenance, JSON-serialisable.

    Raises `ValueError` if shapes or types differ from these, or one of extinction and
    its error is missing.
    """

    l: np.ndarray  # noqa: E741  the standard symbol of Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    extinction: np.ndarray | None = None
    extinction_error: np.ndarray | None = None
    source_id: np.ndarray | None = None
    survey: np.ndarray | None = None
    distance_error: np.ndarray | None = None
    merged: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.extinction is None) != (self.extinction_error is None):
            raise ValueError(
                "extinction and extinction_error belong together: give both or none"
            )
        if shadowed := set(self.extra) & {item.name for item in fields(self)}:
            raise ValueError(f"extra columns shadow {sorted(shadowed)}")
        for name, column in self.columns().items():
            if np.ndim(column) != 1 or len(column) != len(self.l):
                shapes = f"{np.shape(column)}, expected (N,) like l, {np.shape(self.l)}"
                raise ValueError(f"column {name!r} has shape {shapes}")
            if name in CANONICAL_UNITS and column.dtype != np.float64:
                raise ValueError(f"column {name!r} is {column.dtype}, expected float64")
        for name in self.units.keys() & CANONICAL_UNITS:
            if (unit := self.units[name]) != CANONICAL_UNITS[name]:
                raise ValueError(
                    f"{name} is in {unit!r}, expected {CANONICAL_UNITS[name]!r}"
                )

    @classmethod
    def of(
        cls, columns: dict[str, np.ndarray], units: dict[str, str], meta: dict[str, Any]
    ) -> Stars:
        """Return stars from columns by name; non-canonical ones are ``extra``."""
        known = {name: columns[name] for name in COLUMNS if name in columns}
        extra = {name: column for name, column in columns.items() if name not in known}
        return cls(**known, extra=extra, units=dict(units), meta=dict(meta))

    def __len__(self) -> int:
        return len(self.l)

    def columns(self) -> dict[str, np.ndarray]:
        """Return all present columns by name, canonical ones first."""
        named = {name: getattr(self, name) for name in COLUMNS}
        present = {name: column for name, column in named.items() if column is not None}
        return {**present, **self.extra}

    @classmethod
    def joined(cls, parts: Sequence[Stars]) -> Stars:
        """Return the stars of parts with the same columns, one part after another."""
        columns = [part.columns() for part in parts]
        both = {n: np.concatenate([each[n] for each in columns]) for n in columns[0]}
        return cls.of(both, parts[0].units, parts[0].meta)

    def select(self, rows: np.ndarray | slice) -> Stars:
        """Return the stars at an index array, a slice or a boolean mask."""
        chosen = {name: column[rows] for name, column in self.columns().items()}
        return Stars.of(chosen, self.units, self.meta)

    def split(
        self, config: FitConfig, generator: torch.Generator, place: np.ndarray
    ) -> Split:
        """Hold out some of the stars, by each one's ``place`` (`held_out_places`)."""
        part = held_out_places(np.bincount(place), len(self), config, generator)[place]
        return Split(*(np.flatnonzero(part == number) for number in range(3)))

    def pixels(self, nside: int = NSIDE) -> np.ndarray:
        """Return HEALPix pixels, by default of 0.23 deg, nested, shape ``(N,)``."""
        return healpy.ang2pix(nside, self.l, self.b, nest=True, lonlat=True)

    def places(self, nside: int = NSIDE) -> np.ndarray:
        """Return the number of each star's place, shape ``(N,)``.

        A place is a HEALPix pixel of 0.23 deg and a bin of 20% in distance. Stars
        within 0.12 deg and 20% of one of a smaller survey have the place of the nearest
        one, without chains: a star that has joined another is joined by none. With
        another ``nside`` all of these are in proportion to its pixels.
        """
        size = NSIDE / nside
        # In any unit the shells are the same.
        nearest = self.distance.min(initial=np.inf)
        depth = np.log(self.distance / nearest) / np.log1p(0.2 * size)
        numbers = self.pixels(nside) + healpy.nside2npix(nside) * np.floor(depth)
        cells = np.unique(numbers, return_inverse=True)[1]
        if self.survey is None:
            return cells
        vectors = unit_vectors(self.l, self.b) / np.radians(0.12 * size)
        points = np.column_stack([vectors, depth])
        survey = np.unique(self.survey, return_inverse=True)[1]
        found, joined_by = cells.copy(), np.empty(0, np.int64)
        # A list of all neighbours would not fit into memory.
        for number in np.argsort(np.bincount(survey), kind="stable"):
            rows = np.flatnonzero(survey == number)
            tree = KDTree(points[joined_by])
            near = np.asarray(tree.query(points[rows], distance_upper_bound=1.0)[1])
            joins = near < len(joined_by)
            found[rows[joins]] = cells[joined_by[near[joins]]]
            joined_by = np.append(joined_by, rows[~joins])
        return np.unique(found, return_inverse=True)[1]

    @property
    def distance_std(self) -> np.ndarray:
        """Return the distances' standard deviation [pc], zero if unknown, ``(N,)``.

        Of merged stars it is that of their mean.
        """
        if self.distance_error is None:
            return np.zeros(len(self))
        error = np.nan_to_num(self.distance_error, nan=0.0)
        return error if self.merged is None else error / np.sqrt(self.merged)

    def variance(
        self, density: float | np.ndarray = 0.0, common_noise: float = 0.0
    ) -> np.ndarray:
        r"""Return the variance of each star's extinction [mag²], shape ``(N,)``.

        .. math:: \sigma_A^2 + \tau^2 + (\rho\, \sigma_d)^2

        with the ``density`` :math:`\rho` at the star [mag/pc], the error
        :math:`\sigma_d` of its place [pc] and the ``common_noise`` :math:`\tau` [mag].
        """
        assert self.extinction_error is not None
        own = self.extinction_error**2 + common_noise**2
        return own + (density * self.distance_std) ** 2

    def positions(self) -> np.ndarray:
        """Return heliocentric Galactic ``x, y, z`` [pc], shape ``(N, 3)``.

        +x points to l = 0, +y to l = 90 deg, +z to the north Galactic pole.
        """
        return self.distance[:, None] * unit_vectors(self.l, self.b)


def held_out_places(
    sizes: np.ndarray, count: int, config: FitConfig, generator: torch.Generator
) -> np.ndarray:
    """Return the part of every place in a `Split`, 0 to 2, by its number of stars.

    ``data.holdout`` of ``count`` stars are held out, and some are for the residual: a
    larger part of small catalogues, or none if too small; of large ones 5,000 are held
    out at most, and 3,000 for the residual. Each place is held out as a whole, in
    random order: a star whose neighbours are fitted would not be unseen.
    """
    import torch  # not needed by the processes of an ingestion

    part = config.data.validation
    if part is None:
        # 400 stars suffice for a good residual.
        part = max(0.05, min(0.15, 400 / max(count, 1)))
    validation = min(round(part * count), 3_000)
    if not config.shares_noise or validation < FEWEST_VALIDATION:
        validation = 0
    held = min(round(config.data.holdout * count), 5_000)
    order = torch.randperm(len(sizes), generator=generator).numpy()
    before = sizes[order].cumsum()
    found = np.zeros(len(sizes), np.int8)
    found[order[before <= held + validation]] = 1
    found[order[before <= held]] = 2
    return found


def write_stars(path: AnyPath, stars: Stars, *, overwrite: bool) -> None:
    """Write a canonical table; see `write_table` for the errors raised."""
    columns, units = stars.columns(), CANONICAL_UNITS | stars.units
    write_table(path, columns, units=units, meta=stars.meta, overwrite=overwrite)


def read_stars(path: AnyPath, *, canonical_only: bool = False) -> Stars:
    """Read a table written by ``dustmap ingest`` or ``dustmap simulate``.

    ``canonical_only`` skips identifiers and further columns.

    Raises `InputError` if the file is missing, unreadable, or not such a table.
    """
    names = set(COLUMNS) - {"source_id"} if canonical_only else None
    return _stars(Path(path), *read_table(path, names))


def star_batches(path: AnyPath, names: Collection[str]) -> Iterator[Stars]:
    """Yield some stars at a time, with these columns.

    Raises `InputError` as `read_stars`.
    """
    meta = read_table(path, ())[2]
    for columns, units in read_batches(path, names):
        yield _stars(Path(path), columns, units, meta)


def _stars(
    path: Path,
    columns: dict[str, np.ndarray],
    units: dict[str, str],
    meta: dict[str, Any],
) -> Stars:
    if missing := {"l", "b", "distance"} - set(columns):
        raise InputError(
            f"{path} lacks the columns {sorted(missing)}: it is not a table of stars; "
            "make one with `dustmap ingest`"
        )
    try:
        return Stars.of(columns, units, meta)
    except ValueError as error:
        raise InputError(f"{path}: {error}; make it with `dustmap ingest`") from error


def read_stars_together(path: AnyPath, group: Group) -> Stars:
    """Read the stars on all ranks, identifiers and further columns on rank 0 only.

    Raises `InputError` as `read_stars`, on all ranks if one of them fails.
    """
    stars, fault = None, None
    try:
        stars = read_stars(path, canonical_only=not group.first)
    except InputError as error:
        fault = error
    group.meet()
    if group.agree(fault is not None) or stars is None:
        raise fault or InputError(f"{path} cannot be read by another process")
    return stars
