"""Tables of references: plain columns under generic names, from any table format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.readers import open_source, read_columns

DISTANCES = {"distance": "distance [pc]", "dm": "distance modulus [mag]"}
VALUES = {"extinction": "in the band of the map [mag]", "ebv": "E(B-V) [mag]"}
LINES_NEED = (
    "l, b [deg]; distance [pc] or dm [mag]; extinction [mag, in the band of the map] "
    "or ebv [mag]; and maybe los, sample (-1 or none: best fit), dm_min, dm_max"
)
CLOUDS_NEED = (
    "name, dist_pc [pc]; and l_approx, b_approx or l, b [deg] and e_dist_pc [pc] where "
    "they are known"
)


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


def column_names(path: Path) -> set[str]:
    """Which columns a table has."""
    return set(open_source(path).columns)


def is_lines(names: set[str]) -> bool:
    """Whether these columns can be those of lines of sight."""
    return (
        {"l", "b"} <= names
        and bool(names & set(DISTANCES))
        and bool(names & set(VALUES))
    )


def is_clouds(names: set[str]) -> bool:
    """Whether these columns can be those of clouds."""
    return {"name", "dist_pc"} <= names


def read_lines(path: Path) -> tuple[list[Line], str]:
    """Lines of sight, and which of the columns `VALUES` their extinctions are of.

    One row per line, sample and distance, in any order.

    Raises
    ------
    InputError
        If columns are missing, or the samples of a line are not at its distances.
    """
    names = column_names(path)
    if not is_lines(names):
        raise InputError(
            f"{path} has the columns {', '.join(sorted(names))}; lines of sight need "
            f"{LINES_NEED}"
        )
    value = "extinction" if "extinction" in names else "ebv"
    optional = {"los", "sample", "dm_min", "dm_max"} & names
    scale = "distance" if "distance" in names else "dm"
    columns = _read(path, {"l", "b", scale, value, *optional}, set())
    if scale == "dm":
        columns["distance"] = from_modulus(columns["dm"])
    columns["value"] = columns[value]
    keys = ["los"] if "los" in optional else ["l", "b"]
    each = np.stack([columns[key] for key in keys], axis=1)
    lines = [
        _line(path, {n: c[(each == key).all(axis=1)] for n, c in columns.items()})
        for key in np.unique(each, axis=0)
    ]
    return lines, value


def _line(path: Path, rows: dict[str, np.ndarray]) -> Line:
    lon, lat = float(rows["l"][0]), float(rows["b"][0])
    name = f"l = {lon:.4g}, b = {lat:.4g}"
    sample = rows.get("sample", np.full(len(rows["l"]), -1.0))
    profiles = {}
    for number in np.unique(sample):
        own = sample == number
        order = np.argsort(rows["distance"][own])
        profiles[number] = (rows["distance"][own][order], rows["value"][own][order])
    distance = next(iter(profiles.values()))[0]
    for number, (places, _) in profiles.items():
        if not np.array_equal(places, distance) or not (np.diff(places) > 0).all():
            raise InputError(
                f"{path}, line {name}: sample {number:g} is not at the same distances "
                "as the others, each once"
            )
    samples = [values for number, (_, values) in profiles.items() if number >= 0]
    drawn = np.array(samples).reshape(len(samples), len(distance))
    best = profiles[-1.0][1] if -1.0 in profiles else np.median(drawn, axis=0)
    return Line(
        name=name,
        l=lon,
        b=lat,
        distance=distance,
        best=best,
        samples=drawn,
        near=float(from_modulus(rows["dm_min"][0])) if "dm_min" in rows else 0.0,
        far=float(from_modulus(rows["dm_max"][0])) if "dm_max" in rows else np.inf,
    )


def read_clouds(path: Path) -> list[Cloud]:
    """Clouds, one per row.

    Raises
    ------
    InputError
        If columns are missing or a distance is not positive.
    """
    names = column_names(path)
    if not is_clouds(names):
        raise InputError(
            f"{path} has the columns {', '.join(sorted(names))}; clouds need "
            f"{CLOUDS_NEED}"
        )
    place = ("l_approx", "b_approx") if "l_approx" in names else ("l", "b")
    wanted = {"dist_pc", *({"e_dist_pc", *place} & names)}
    columns = _read(path, wanted, {"name"})
    bad = ~(columns["dist_pc"] > 0)
    if bad.any():
        raise InputError(f"{path}: dist_pc is not positive in {int(bad.sum())} rows")
    unknown = np.full(len(bad), np.nan)
    return [
        Cloud(name=str(name), distance=float(d), error=float(e), l=float(l), b=float(b))
        for name, d, e, l, b in zip(  # noqa: E741
            columns["name"],
            columns["dist_pc"],
            columns.get("e_dist_pc", unknown),
            columns.get(place[0], unknown),
            columns.get(place[1], unknown),
            strict=True,
        )
    ]


def from_modulus(modulus: np.ndarray) -> np.ndarray:
    """Distance [pc] of a distance modulus [mag]."""
    return 10.0 ** (np.asarray(modulus) / 5 + 1)


def _read(path: Path, numbers: set[str], texts: set[str]) -> dict[str, np.ndarray]:
    requests = {name: (name, "number") for name in sorted(numbers)}
    requests |= {name: (name, "string") for name in sorted(texts)}
    batches = list(read_columns(open_source(path), requests))
    if not batches or not sum(len(next(iter(b.values()))) for b in batches):
        raise InputError(f"{path} has no rows")
    return {name: np.concatenate([b[name] for b in batches]) for name in requests}
