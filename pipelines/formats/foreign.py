"""Maps of other programs: the meaning, unit and band of the arrays of a file.

Nothing is guessed: an error asks for facts that neither the file, the user nor
``catalogs/maps/published.toml`` states.
"""

from __future__ import annotations

import importlib.resources
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from astropy import units as u

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.base.quantiles import KINDS
from pipelines.base.quantities import numbers
from pipelines.formats.containers import SPHERE, Variable, opened_variables

FRAMES = {"galactic": ("x", "y", "z"), "lbd": SPHERE}
"""Axes of files without any, in the order of FITS axes or array indices."""
_CENTRES = "radial pixel centers"
_EDGES = "radial pixel boundaries"


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A user's statements about another program's map; ``None`` leaves it to the file.

    The ``unit`` of values is mag per length for densities, ``mag`` for extinctions from
    the Sun, ``mag/bin`` for the extinction of each bin of distance. ``map_of`` is a
    published map by its name in ``catalogs/maps/published.toml``. ``origin`` is the
    centre of the first cell, ``step`` the size of the cells, along each axis [pc, deg]
    of the ``frame``: ``galactic`` (x, y, z; default) or ``lbd`` (l, b, distance).
    """

    unit: str | None = None
    map_of: str | None = None
    origin: tuple[float, ...] | None = None
    step: tuple[float, ...] | None = None
    frame: str | None = None

    def __post_init__(self) -> None:
        if (self.origin is None) != (self.step is None):
            raise InputError("--origin and --step go together (origin=, step=)")
        if self.frame is not None and (self.frame not in FRAMES or self.step is None):
            raise InputError(
                f"--frame is {' or '.join(FRAMES)}, and goes with --origin and --step; "
                f"got {self.frame!r}"
            )
        for name in ("origin", "step"):
            if (given := getattr(self, name)) is not None:
                found = np.atleast_1d(np.asarray(given, dtype=np.float64))
                found = np.repeat(found, 3) if len(found) == 1 else found
                if len(found) != 3 or not np.isfinite(found).all():
                    raise InputError(f"--{name} has 1 or 3 numbers, got {given}")
                object.__setattr__(self, name, tuple(found.tolist()))
        if self.step is not None and not all(self.step):
            raise InputError(f"--step is a size above 0, got {self.step}")

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the published map, none without ``map_of``.

        Raises `InputError` for an unknown name.
        """
        if self.map_of is None:
            return {}
        known = _published()
        if self.map_of not in known:
            raise InputError(
                f"--map-of {self.map_of}: there is no such map, only "
                f"{', '.join(known)}; describe others by --unit and --declare-band"
            )
        return known[self.map_of]

    def given(self) -> list[str]:
        """Return the names of the stated facts."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


@dataclass(frozen=True, kw_only=True)
class ForeignField:
    """A map in its own unit.

    ``arrays`` are moments by name, ``(z, y, x)``; on the sky ``(distance, pixel)``, or
    the samples ``(pixel, sample, distance)`` from which they are computed. ``axes`` are
    their centres [pc, deg], ``edges`` the edges of bins of distance ``(k + 1,)``, or
    the distances of extinctions ``(k,)`` [pc]. ``unit`` is mag per length of densities,
    mag of extinctions; ``per_bin`` values are extinctions of bins, for ``unit`` times
    their width. ``pixels`` are nside and indices of HEALPix pixels, ``None`` for other
    maps. ``inner`` is the mean extinction to the first edge ``(pixel,)``, or its
    samples ``(pixel, sample)``, in ``unit`` times pc, ``None`` if the file has none.
    ``flags`` by pixel are ``converged``, and the ``nearest`` and ``farthest`` reliable
    distance [pc].
    """

    arrays: dict[str, np.ndarray]
    axes: dict[str, np.ndarray]
    unit: Any
    band: str = ""
    edges: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pixels: tuple[np.ndarray, np.ndarray] | None = None
    inner: np.ndarray | None = None
    flags: dict[str, np.ndarray] | None = None
    per_bin: bool = False

    @property
    def samples(self) -> int:
        """Number of posterior samples of a map on the sky; 0 if it has none."""
        first = next(iter(self.arrays.values()))
        return first.shape[1] if len(self.edges) and first.ndim == 3 else 0

    @property
    def integrated(self) -> bool:
        """True if values are extinctions from the Sun."""
        return self.unit.is_equivalent(u.mag)


def _published() -> dict[str, dict[str, Any]]:
    table = importlib.resources.files("catalogs") / "maps" / "published.toml"
    return tomllib.loads(table.read_text(encoding="utf-8"))


def read_field(path: Path, stated: Stated) -> ForeignField:
    """Read a map of another program.

    Raises `InputError` if unit or axes are neither in the file nor stated, they
    contradict ``map_of``, or the file holds no map.
    """
    facts = stated.facts
    with opened_variables(path) as found:
        if "pixel_info" in found:
            layout, read, text = "multiresolution", _multiresolution(path, found), ""
        elif any("pixel" in variable.axes for variable in found.values()):
            layout, (read, text) = "healpix", _healpix(path, found)
        else:
            read, text = _cube(path, found, stated)
            layout = "xyz" if "x" in read.axes else "lbd"
    unit, band, per_bin = _unit_and_band(path, text, stated)
    if facts and layout not in facts["layouts"]:
        raise InputError(
            f"{path} is a map by {layout}, {stated.map_of} is one by "
            f"{' or '.join(facts['layouts'])}: leave --map-of out, or name another"
        )
    far = [abs(read.axes[name]).max() for name in "xyz" if name in read.axes]
    reach = float(max([*far, *read.edges[-1:]]))
    if facts and reach > facts["reach"]:
        raise InputError(
            f"{path} reaches {reach:g} pc, {stated.map_of} {facts['reach']:g} pc: "
            "it is another map; leave --map-of out"
        )
    read = replace(read, unit=unit, band=band)
    if per_bin:
        if not len(read.edges) or layout == "multiresolution":
            raise InputError(f"{path} has no bins of distance: --unit is not per bin")
        read = replace(read, per_bin=True, unit=unit / u.pc)
    if read.integrated and layout in ("xyz", "healpix"):
        raise InputError(
            f"{path}: extinctions from the Sun are read on l, b and distance only; on "
            f"{layout} a density is expected, such as --unit mag/pc"
        )
    if read.integrated and layout == "lbd":
        # At the Sun the extinction is zero, and no edge of a bin.
        first = int(read.axes["distance"][0] == 0)
        arrays = {name: array[first:] for name, array in read.arrays.items()}
        return replace(read, arrays=arrays, edges=read.axes["distance"][first:])
    return read


def _unit_and_band(path: Path, text: str, stated: Stated) -> UnitText:
    """Return unit, band, and true for values per bin."""
    own = parse_unit(text)
    if facts := stated.facts:
        unit: Any = u.Unit(facts["unit"])
        told = parse_unit(stated.unit) if stated.unit else own
        where = "--unit" if stated.unit else "the file"
        text = stated.unit or text
        agrees = text in ("", *facts.get("file_units", ()))
        if told is not None and not agrees:
            # A unit with less digits is no contradiction.
            same = told.unit.is_equivalent(unit) and not told.per_bin
            agrees = same and abs(told.unit.to(unit) - 1) < 1e-3
            agrees &= told.band in ("", known_band(facts["band"]))
        if not agrees:
            raise InputError(
                f"{path}: {where} says {text!r}, but values of {stated.map_of} are in "
                f"{facts['unit']} of {facts['band']} ({facts['reference']}): leave "
                "--map-of out if it is another map"
            )
        return UnitText(unit, facts["band"], per_bin=False)
    if stated.unit:
        told = parse_unit(stated.unit)
        if told is None:
            raise InputError(
                f"--unit {stated.unit!r}: expected mag per length, such as mag/pc or "
                "mag/kpc; mag for extinctions from the Sun; or mag/bin"
            )
        return told._replace(band=told.band or ("" if own is None else own.band))
    if own is None:
        said = (
            f"states {text!r}, which is no unit of extinction" if text else "has none"
        )
        known = _published().items()
        names = [name for name, facts in known if text in facts.get("file_units", ())]
        also = f" (as in --map-of {' or '.join(names)})" if names else ""
        raise InputError(
            f"the unit of {path}: it {said}{also}: state it, --unit mag/pc "
            "(unit='mag/pc'), or --map-of NAME for a published map"
        )
    if own.unit.is_equivalent(u.mag) and not own.per_bin:
        raise InputError(
            f"{path} is in mag: state --unit mag if these are extinctions from the "
            "Sun, or --unit mag/bin if each is that of its own bin of distance"
        )
    return own


class UnitText(NamedTuple):
    """A parsed unit, the band in it if any, and true for ``mag/bin``."""

    unit: Any
    band: str
    per_bin: bool


def parse_unit(text: str) -> UnitText | None:
    """Parse ``mag/pc``, ``mag``, ``mag/bin``, ``A_V/kpc``, ``A0(550nm)/pc``."""
    plain, per_bin = re.subn(r"\s*(/|per)\s*bin$|\s+bin-1$", "", text.strip())
    head, slash, tail = plain.rpartition("/")
    band = known_band(re.sub(r"^A_?0\(", "A(", head if slash else plain))
    magnitudes = band or (head if slash else plain).lower() in ("magnitude", "mag")
    try:
        unit: Any = u.mag if magnitudes and not slash else u.Unit(plain)
    except (ValueError, TypeError):
        try:
            unit = u.mag / u.Unit(tail) if magnitudes else None
        except (ValueError, TypeError):
            unit = None
    lengths = (u.mag,) if per_bin else (u.mag, u.mag / u.pc)
    if unit is None or not any(unit.is_equivalent(known) for known in lengths):
        return None
    return UnitText(unit, band, bool(per_bin))


def _moments(path: Path, found: dict[str, Variable]) -> dict[str, Variable]:
    """Return arrays by moment; a single array of another name is the mean."""
    names = {name: name.rsplit("/", 1)[-1].strip().lower() for name in found}
    others = {"std.": "std", "sigma": "std", "median": "p50"}
    names = {name: others.get(short, short) for name, short in names.items()}
    known = {short: found[n] for n, short in names.items() if short in KINDS}
    others = [name for name, short in names.items() if short not in KINDS]
    if "mean" not in known and "p50" not in known:
        if len(others) != 1:
            raise InputError(
                f"{path} holds {', '.join(found) or 'no array of three axes'}; "
                "expected one map, or arrays named mean and std"
            )
        known["mean"] = found[others[0]]
    if len({v.unit for v in known.values()} - {""}) > 1:
        raise InputError(f"{path}: mean and std have different units")
    if len({v.shape for v in known.values()}) > 1:
        raise InputError(f"{path}: mean and std have different shapes")
    return known


def _cube(
    path: Path, found: dict[str, Variable], stated: Stated
) -> tuple[ForeignField, str]:
    """Return the field of a cube on x, y, z or on l, b, distance, and its unit."""
    known = _moments(path, {n: v for n, v in found.items() if len(v.shape) == 3})
    text = next((t for v in known.values() if (t := v.unit)), "")
    arrays, axes = {}, {}
    for name, variable in known.items():
        axes = _axes_of(path, variable, stated)
        values, names = variable.values, list(axes)
        wanted = ("z", "y", "x") if "x" in axes else ("distance", "b", "l")
        values = np.transpose(values, [names.index(axis) for axis in wanted])
        for place, axis in enumerate(wanted):
            steps = np.diff(axes[axis])
            if not ((steps > 0).all() or (steps < 0).all()):
                raise InputError(f"{path}: the axis {axis} is not in order")
            if steps[0] < 0:
                values, axes[axis] = np.flip(values, place), axes[axis][::-1]
        arrays[name] = values
    if "x" in axes:
        return ForeignField(arrays=arrays, axes=axes, unit=u.mag), text
    at = axes["distance"]
    middle = (at[1:] + at[:-1]) / 2
    edges = [max(1.5 * at[0] - 0.5 * at[1], 0.0), *middle, 1.5 * at[-1] - 0.5 * at[-2]]
    flat = {n: np.reshape(a, (len(at), -1)) for n, a in arrays.items()}
    return ForeignField(arrays=flat, axes=axes, unit=u.mag, edges=np.array(edges)), text


def _axes_of(path: Path, variable: Variable, stated: Stated) -> dict[str, np.ndarray]:
    """Return the axes of a cube in the array's order [pc, deg]."""
    shape, attrs, facts = variable.shape, variable.attrs, stated.facts
    sizes = shape[::-1] if variable.backwards else shape
    origin, step, names = stated.origin, stated.step, FRAMES[stated.frame or "galactic"]
    if step is None and set(variable.axes) in map(set, FRAMES.values()):
        return dict(variable.axes)
    if step is None and "origin" in facts:
        origin, step = facts["origin"], facts["step"]
        if any(abs(2 * o + (n - 1) * s) > s for o, s, n in zip(origin, step, shape)):
            raise InputError(
                f"{path} has the shape {shape}, not that of {stated.map_of}: give "
                "--origin and --step of this part"
            )
    sun = attrs.get("sun_position", [attrs.get(f"SUN_POS{a}") for a in "XYZ"])
    if step is None and all(part is not None for part in sun):
        # The layout of STILISM and EXPLORE: cell k extends from k to k + 1.
        size = attrs.get("gridstep_values", attrs.get("STEP"))
        step = np.broadcast_to(np.asarray(size, dtype=np.float64), 3)
        sun, centre = np.asarray(sun, dtype=np.float64), np.asarray(sizes) / 2
        if not np.allclose(sun, centre) and np.allclose(np.roll(sun, -1), centre):
            # Some of these files, centred on the Sun, list its place along z first.
            sun = centre
        if not ((sun >= 0) & (sun <= sizes)).all():
            raise InputError(f"{path}: the Sun at {sun} is outside of {sizes} cells")
        origin = (0.5 - sun) * step
    if step is None or origin is None:
        held = ", ".join(variable.axes) or "no axes"
        raise InputError(
            f"{path} has {held}, expected x, y, z or l, b, distance with their units: "
            "state the centre of the first cell and the size of the cells [pc], e.g. "
            "--origin=-500,-500,-200 --step 10 (origin=, step=); --frame lbd for "
            "l, b [deg] and distance"
        )
    centres = [o + s * np.arange(n) for o, s, n in zip(origin, step, sizes)]
    axes = dict(zip(names, centres))
    return dict(reversed(axes.items())) if variable.backwards else axes


def _healpix(path: Path, found: dict[str, Variable]) -> tuple[ForeignField, str]:
    """Return the field of images by distance and HEALPix pixel, and its unit."""
    sky = {n: v for n, v in found.items() if "pixel" in v.axes}
    inner = {n: v for n, v in sky.items() if "integrated inner" in n.lower()}
    known = _moments(path, {n: v for n, v in sky.items() if n not in inner})
    text = next((t for v in known.values() if (t := v.unit)), "")
    first = next(iter(known.values()))
    if len(first.shape) not in (2, 3) or (len(first.shape) == 3 and len(known) > 1):
        raise InputError(
            f"{path} has images of shape {first.shape}, expected (distance, "
            "pixel), or one of (sample, distance, pixel)"
        )
    missing = [n for n in (_CENTRES, _EDGES) if n not in found]
    sizes = [np.prod(found[n].shape) for n in (_CENTRES, _EDGES) if n in found]
    count = first.shape[-2]
    if missing or sizes != [count, count + 1]:
        raise InputError(
            f"{path}: expected columns {_CENTRES!r} ({count}) and {_EDGES!r} "
            f"({count + 1}), found {sizes or 'none'}"
        )
    centres, edges = (
        numbers(found[n].values.reshape(-1), "pc") for n in (_CENTRES, _EDGES)
    )
    mean = [v for n, v in inner.items() if not n.lower().startswith("std")]
    orders = {str(v.attrs["ORDERING"]).upper()[:4] for v in sky.values()}
    pixels = np.arange(first.shape[-1])
    import healpy  # here, for its import takes longer than a query

    nside = healpy.npix2nside(len(pixels))
    if len(orders) != 1:
        raise InputError(f"{path}: the images are in several orders of pixels")
    for variable in mean:
        said = str(variable.attrs.get("CTYPE", ""))
        radius = re.search(r"within\s+([\d.]+)\s*pc", said)
        if radius and abs(float(radius[1]) - edges[0]) > 1e-3 * edges[0]:
            raise InputError(
                f"{path}: the inner integral ends at {radius[1]} pc, the bins begin at "
                f"{edges[0]:g} pc"
            )
    if orders == {"RING"}:
        pixels = healpy.ring2nest(nside, pixels)
    arrays = {name: variable.values for name, variable in known.items()}
    if len(first.shape) == 3:
        arrays = dict.fromkeys(KINDS, np.moveaxis(first.values, -1, 0))
    return ForeignField(
        arrays=arrays,
        axes={"distance": centres},
        unit=u.mag,
        edges=edges,
        pixels=(np.full(len(pixels), nside), pixels),
        inner=np.asarray(mean[0].values, dtype=np.float64).T if mean else None,
    ), text


def _multiresolution(path: Path, found: dict[str, Variable]) -> ForeignField:
    """Return the field of ``pixel_info``, ``best_fit`` and ``samples``: Bayestar's."""
    info, samples = found["pixel_info"], found.get("samples")
    limits = ("DM_reliable_min", "DM_reliable_max")
    wanted = {"nside", "healpix_index", "converged", *limits}
    names = set(info.values.dtype.names or ())
    if samples is None or not wanted <= names or "DM_bin_edges" not in info.attrs:
        raise InputError(
            f"{path}: expected samples, and pixel_info with the attribute DM_bin_edges "
            f"and {', '.join(sorted(wanted))}"
        )
    rows: Any = info.values
    modulus = np.asarray(info.attrs["DM_bin_edges"], dtype=np.float64)
    nearest, farthest = (_parsecs(rows[name]) for name in limits)
    return ForeignField(
        arrays=dict.fromkeys(KINDS, samples.values),
        axes={"distance": _parsecs(modulus)},
        edges=_parsecs(modulus),
        unit=u.mag,
        pixels=(rows["nside"].astype(int), rows["healpix_index"].astype(int)),
        flags={
            "converged": rows["converged"].astype(bool),
            "nearest": np.where(np.isfinite(nearest), nearest, np.inf),
            "farthest": np.where(np.isfinite(farthest), farthest, 0.0),
        },
    )


def _parsecs(modulus: np.ndarray) -> np.ndarray:
    return 10.0 ** (np.asarray(modulus, dtype=np.float64) / 5 + 1)
