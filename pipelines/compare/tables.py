"""Tables of references: plain columns under generic names, from any table format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.readers import open_source, read_columns

_DISTANCES, _VALUES = ("distance", "dm"), ("extinction", "ebv")
_NEED = {
    "lines": "l, b [deg]; distance [pc] or dm [mag]; extinction [mag, in the band of "
    "the map] or ebv [mag]; and maybe los, sample (-1 or none: best fit), dm_min, "
    "dm_max",
    "clouds": "name, dist_pc [pc]; and l_approx, b_approx or l, b [deg] and e_dist_pc "
    "[pc] where they are known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A published line of sight.

    ``distance`` [pc], ``best`` [mag], shape ``(n,)``; ``samples`` [mag], shape
    ``(s, n)``; the reference itself trusts distances from ``near`` to ``far`` [pc].
    """

    name: str
    l: float  # noqa: E741  the field's name for Galactic longitude
    b: float
    distance: np.ndarray
    best: np.ndarray
    samples: np.ndarray
    near: float
    far: float

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation over the samples [mag], 0 without any; shape ``(n,)``."""
        if len(self.samples) < 2:
            return np.zeros(len(self.distance))
        return self.samples.std(axis=0, ddof=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A cloud at ``distance`` ± ``error`` [pc]; NaN for what is not known."""

    name: str
    distance: float
    error: float
    l: float  # noqa: E741  the field's name for Galactic longitude
    b: float

    @property
    def placed(self) -> bool:
        """Whether its place on the sky is known."""
        return bool(np.isfinite([self.l, self.b]).all())


def table_kind(path: Path) -> str:
    """``clouds`` or ``lines``, by the columns of a table.

    Raises
    ------
    InputError
        If the columns are those of neither.
    """
    names = set(open_source(path).columns)
    for kind in ("clouds", "lines"):
        if _fits(kind, names):
            return kind
    raise InputError(
        f"{path} has the columns {', '.join(sorted(names))}: it is neither lines of "
        f"sight ({_NEED['lines']}) nor clouds ({_NEED['clouds']}); stars are to be "
        "ingested first"
    )


def _fits(kind: str, names: set[str]) -> bool:
    if kind == "clouds":
        return {"name", "dist_pc"} <= names
    return {"l", "b"} <= names and all(names & {*s} for s in (_DISTANCES, _VALUES))


def read_lines(path: Path) -> tuple[list[Line], str]:
    """Lines of sight, and whether they are in ``extinction`` or ``ebv``.

    One row per line, sample and distance, in any order.

    Raises
    ------
    InputError
        If columns are missing, or the samples of a line are not at its distances.
    """
    optional = ("los", "sample", "dm_min", "dm_max")
    wanted = ("l", "b", *_DISTANCES, *_VALUES, *optional)
    columns = _read(path, "lines", wanted)
    value = "extinction" if "extinction" in columns else "ebv"
    if "distance" not in columns:
        columns["distance"] = _from_modulus(columns["dm"])
    columns["value"] = columns[value]
    keys = ("los",) if "los" in columns else ("l", "b")
    each = np.stack([columns[key] for key in keys], axis=1)
    lines = [
        _line(path, {n: c[(each == key).all(axis=1)] for n, c in columns.items()})
        for key in np.unique(each, axis=0)
    ]
    return lines, value


def _line(path: Path, rows: dict[str, np.ndarray]) -> Line:
    """One line; ``sample`` -1 is the best fit, else the median of the samples is."""
    lon, lat = float(rows["l"][0]), float(rows["b"][0])
    name = f"l = {lon:.4g}, b = {lat:.4g}"
    sample = rows.get("sample", np.full(len(rows["l"]), -1.0))
    numbers, distance = np.unique(sample), np.unique(rows["distance"])
    order = np.lexsort((rows["distance"], sample))
    places = rows["distance"][order]
    if not np.array_equal(places, np.tile(distance, len(numbers))):
        raise InputError(
            f"{path}, line {name}: the samples are not at the same distances, each once"
        )
    profiles = rows["value"][order].reshape(len(numbers), -1)
    samples, best = profiles[numbers >= 0], profiles[numbers == -1]
    return Line(
        name=name,
        l=lon,
        b=lat,
        distance=distance,
        best=best[0] if len(best) else np.median(samples, axis=0),
        samples=samples,
        near=float(_from_modulus(rows["dm_min"][0])) if "dm_min" in rows else 0.0,
        far=float(_from_modulus(rows["dm_max"][0])) if "dm_max" in rows else np.inf,
    )


def read_clouds(path: Path) -> list[Cloud]:
    """Clouds, one per row.

    Raises
    ------
    InputError
        If columns are missing or a distance is not positive.
    """
    wanted = ("name", "dist_pc", "e_dist_pc", "l_approx", "b_approx", "l", "b")
    columns = _read(path, "clouds", wanted)
    bad = ~(columns["dist_pc"] > 0)
    if bad.any():
        raise InputError(f"{path}: dist_pc is not positive in {int(bad.sum())} rows")
    place = ("l_approx", "b_approx") if "l_approx" in columns else ("l", "b")
    unknown = np.full(len(bad), np.nan)
    numbers = [columns.get(n, unknown) for n in ("dist_pc", "e_dist_pc", *place)]
    return [
        Cloud(name=str(name), distance=d, error=e, l=lon, b=lat)
        for name, (d, e, lon, lat) in zip(
            columns["name"], np.transpose(numbers).tolist()
        )
    ]


def _from_modulus(modulus: np.ndarray) -> np.ndarray:
    """Distance [pc] of a distance modulus [mag]."""
    return 10.0 ** (np.asarray(modulus) / 5 + 1)


def _read(path: Path, kind: str, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """The wanted columns that a table has; ``name`` is text, the others numbers."""
    source = open_source(path)
    names = set(source.columns)
    if not _fits(kind, names):
        raise InputError(
            f"{path} has the columns {', '.join(sorted(names))}; {kind} need "
            f"{_NEED[kind]}"
        )
    requests = {
        name: (name, "string" if name == "name" else "number")
        for name in wanted
        if name in names
    }
    batches = list(read_columns(source, requests))
    columns = {n: np.concatenate([b[n] for b in batches]) for n in requests if batches}
    if not batches or not len(columns[wanted[0]]):
        raise InputError(f"{path} has no rows")
    return columns
