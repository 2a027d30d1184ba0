"""Opening of a map from a path, a name or an object."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from astropy import units as u

from dustmap.memory import row_blocks
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.table import Facts
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import is_own, open_checked, read_cube_and_curves, read_fits
from pipelines.formats.foreign import Stated, parse_unit
from pipelines.formats.healpix import read_healpix
from pipelines.formats.zarr import is_own_store, is_url, read_zarr
from pipelines.maps.answers import EVERYWHERE, NOTHING, Answers, Found, Kinds
from pipelines.maps.foreign import Sampled, open_foreign, origin_facts, origin_of
from pipelines.maps.places import Places
from pipelines.maps.stored import of_cube, of_sky_maps, open_store
from pipelines.saving.workspace import SUFFIX, unfinished

Form = Literal["run", "store", "npz", "cube", "sky", "stars", "foreign"]
PACKAGE = "dustmaps:"
# Spacing [pc] of differences of extinctions and integrals of densities.
STEP = 20.0


def form_of(path: Path) -> Form:
    """Return the form of a map on disk.

    A folder is a run, finished or not, unless it is a store; a file with no other known
    signature is assumed to be FITS. ``foreign`` are zarr, HDF5, netCDF and FITS files
    that this program did not write. Raises `InputError` if the path does not exist, or
    a FITS file of this program is damaged.
    """
    stopped = unfinished(path) is not None
    if stopped and (path.name.endswith(SUFFIX) or not path.exists()):
        return "run"
    if not path.exists():
        raise InputError(
            f"{path} does not exist: expected an export of `dustmap export RUN` "
            "(map.zarr, map.fits or map.healpix.fits), or a run folder"
        )
    if path.is_dir():
        if (path / "zarr.json").is_file() or (path / ".zgroup").is_file():
            return "store" if is_own_store(path) else "foreign"
        is_run = any((path / name).is_file() for name in ("run.json", "config.toml"))
        return "stars" if not is_run and any(path.glob("[!.]*.parquet")) else "run"
    if path.suffix == ".npz":
        return "npz"
    with path.open("rb") as stream:
        # As long as the first header of a FITS file of this program.
        head = stream.read(1 << 16)
    if head[:4] == b"PAR1" or path.suffix in (".csv", ".ecsv", ".vot", ".parquet"):
        return "stars"
    fits = head.startswith((b"SIMPLE  =", b"\x1f\x8b"))
    if head.startswith((b"\x89HDF", b"CDF")) or (fits and not is_own(head)):
        return "foreign"
    with open_checked(path) as hdus:
        table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
        return "sky" if table else "cube"


def open_answers(
    path: str | Path, *, samples: str | Path | None = None, **stated: Any
) -> Answers:
    """Open a map.

    The path is a map store (``dustmap export RUN --zarr map.zarr``), read chunk by
    chunk around places; another export (``map.fits``, ``map.healpix.fits``) or an
    archive (`read_npz`), read whole and with fewer products; or a run folder, whose
    values are computed anew. A store may be at a URL of fsspec (https, s3). Maps of
    other programs are cubes or sky maps by distance in FITS, HDF5, netCDF or zarr, or
    ``dustmaps:MODULE.CLASS``; what is ``stated`` of them are arguments of
    `pipelines.formats.foreign.Stated`, and ``declare_band``. ``samples`` is the run
    folder for posterior samples of an export.

    Raises `InputError` if the path is none of these, or is incomplete or altered, if
    the samples belong to another map or band, or another program's map needs what is
    not stated.
    """
    band, given = stated.pop("declare_band", None), Stated(**stated)
    if str(path).startswith(PACKAGE):
        return open_named(str(path), given).in_band(None, band)
    if is_url(path) and not given.given() and samples is None:
        return open_store(path).in_band(None, band)
    path = Path(path)
    form = form_of(path)
    if form == "foreign":
        if samples is not None:
            raise InputError(
                f"{path} is another program's map, and a run has no samples of it: "
                "leave --samples out; samples in its own file need no option"
            )
        return open_foreign(path, given).in_band(None, band)
    if names := given.given():
        raise InputError(
            f"{path} was written by this program and states its unit and band: leave "
            f"out {', '.join('--' + name.replace('_', '-') for name in names)}"
        )
    match form:
        case "run":
            return open_run(path).in_band(None, band)
        case "store":
            answers = open_store(path)
        case "sky":
            answers = of_sky_maps(path, read_healpix(path))
        case "stars":
            raise InputError(
                f"{path} is a table of stars, not a map: fit a map to it with `dustmap "
                "fit` (after `dustmap ingest`), and open the run folder"
            )
        case "cube":
            answers = of_cube(path, *read_cube_and_curves(path))
        case _:
            answers = of_cube(path, _READERS[form](path))
    if samples is None:
        return answers.in_band(None, band)
    if answers.origins() and "run" not in answers.meta:
        raise InputError(
            f"{path} is an export of another program's map, and a run has no samples "
            "of it: leave --samples out, and open the file that it was exported from "
            "if that holds samples"
        )
    draws = open_run(samples)
    if draws.band != answers.band:
        raise InputError(
            f"{path} is in {answers.band or 'an unnamed band'}, the samples are in "
            f"{draws.band or 'an unnamed band'}: open the map exported from this run "
            "without conversion"
        )
    fit, run = answers.meta.get("fit"), draws.fit
    if fit is not None and (run is None or run.provenance["fit"] != fit):
        raise InputError(
            f"{path} is an export of another fit than {samples}: give its own run "
            f"(named {answers.meta['run']} then)"
        )
    ours, theirs = answers.box, draws.box
    if not np.allclose([ours.lower, ours.upper], [theirs.lower, theirs.upper]):
        raise InputError(
            f"{path} spans {ours.lower} to {ours.upper} pc, the samples "
            f"{theirs.lower} to {theirs.upper} pc, so they belong to another map: give "
            "its own run"
        )
    whole = replace(answers, draws=draws.estimated(answers.estimate or None))
    return whole.in_band(None, band)


def open_run(path: str | Path) -> Answers:
    """Open a run folder; raises `InputError` if it is none, or was altered."""
    # These need torch.
    from pipelines.maps.run_map import RunMap
    from pipelines.run.folder import read_run

    return RunMap.of(read_run(path))


def open_other(
    reference: Any,
    *,
    factor: float | None = None,
    integrated: bool | None = None,
    query: dict[str, Any] | None = None,
    step: float | None = None,
    **stated: Any,
) -> Answers:
    """Open a map that continues another one, or is compared with it.

    A cube is always integrated between its own points, and is NaN along rays on which
    it has no dust. The ``reference`` is a path as for `open_answers`,
    ``dustmaps:MODULE.CLASS``, an opened map, or an object with ``.query(coordinates)``,
    whose values are extinctions from the observer if ``integrated``; ``query`` are its
    keywords, and ``step`` is the spacing of differences and integrals [pc]. ``stated``
    is as for `open_answers`; a unit or a published map says what ``integrated`` says.
    The ``factor`` leads from its values to mag (mag/pc) in the band of the first, and
    is required for a map of the package dustmaps; without it maps of known bands are
    converted.

    Raises `InputError` if the map cannot be opened, or a required option is missing.
    """
    stated = {name: value for name, value in stated.items() if value is not None}
    reference = getattr(reference, "answers", reference)
    package = isinstance(reference, str) and reference.startswith(PACKAGE)
    path = isinstance(reference, str | Path) and not package
    if (path or isinstance(reference, Answers)) and (integrated is not None or query):
        raise InputError(
            f"{reference} says what its values are: --integrated, --differential and "
            "--query (integrated=, query=) are for maps of the package dustmaps"
        )
    if factor is not None and not factor > 0:
        raise InputError(f"a factor between bands is above 0, got {factor:g}")
    if package and not (factor or stated.keys() & {"declare_band", "map_of"}):
        raise InputError(
            f"{reference}: give --factor, which converts its values to mag (or, "
            "with --differential, mag/pc) in the band of this map (see its docs), or "
            "--map-of, or --declare-band"
        )
    if isinstance(reference, Answers):
        found = reference
    elif not path:
        band, given = stated.pop("declare_band", None), Stated(**stated)
        how = {"integrated": integrated, "query": query, "step": step}
        found = open_named(reference, given, **how).in_band(None, band)
    elif (form := form_of(Path(reference))) in _READERS and not stated:
        file = Path(reference)
        found = of_cube(file, _READERS[form](file), blank=True)
    else:
        found = open_answers(Path(reference), **stated)
    # In its own band, or by the factor to the first's.
    band = found.band if factor is None else ""
    return replace(found, band=band).converted(None, factor or 1.0)


def open_filling(
    reference: Any, *, factor: float | None = None, **options: Any
) -> Answers:
    """Open a map that continues another one (`open_other`).

    Raises `InputError` if its band is unknown, without a factor, and it is another
    program's.
    """
    found = open_other(reference, factor=factor, **options)
    if factor is None and found.origins() and not found.known_band:
        raise InputError(
            f"the band of {reference} is unknown: state it, e.g. --fill-declare-band "
            "A_V (declare_band=), or its factor to the band of the map, --fill-factor "
            "(factor=)"
        )
    return found


def open_named(
    reference: Any,
    stated: Stated,
    *,
    integrated: bool | None = None,
    query: dict[str, Any] | None = None,
    step: float | None = None,
) -> QueriedMap:
    """Open ``dustmaps:MODULE.CLASS``, or an object with ``.query``.

    Raises `InputError` if neither ``integrated`` nor a unit nor a published map says
    what its values are.
    """
    source, name = reference, type(reference).__name__
    if isinstance(reference, str):
        source, name = open_package(reference.removeprefix(PACKAGE)), reference
    elif not hasattr(source, "query"):
        raise InputError(f"{name} is no map: expected an object with .query")
    facts = stated.facts
    text = stated.unit or facts.get("unit")
    parsed, scale = None if text is None else parse_unit(text), 1.0
    if text is not None:
        if parsed is None or parsed.per_bin:
            raise InputError(f"--unit {text!r}: expected mag or mag per length")
        sums = parsed.unit.is_equivalent(u.mag)
        if integrated not in (None, sums):
            raise InputError(
                f"{name}: values in {text} are {'extinctions' if sums else 'densities'}"
                ": leave --integrated and --differential out"
            )
        integrated = sums
        scale = parsed.unit.to(u.mag if sums else u.mag / u.pc)
    if integrated is None:
        raise InputError(
            f"choose the quantity that {name}.query returns: extinction "
            "(integrated=True, --integrated, --unit mag) or density (integrated=False, "
            "--differential, --unit mag/pc)"
        )
    return QueriedMap(
        path=Path(name),
        band=facts.get("band", "" if parsed is None else parsed.band),
        source=source,
        integrated=integrated,
        options=query or {},
        step=STEP if step is None else step,
        scale=scale,
        stated=stated,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class QueriedMap(Sampled):
    """An object with ``.query(coordinates)``, such as those of the package dustmaps.

    Its values are extinctions from the observer if ``integrated``, else densities.
    ``options`` are keywords of ``query``, such as ``mode="median"``; ``step`` [pc] is
    the spacing of integrals of densities and differences of extinctions; values are
    multiplied by ``scale``.
    """

    source: Any
    integrated: bool
    scale: float = 1.0
    stated: Stated = field(default_factory=Stated)
    options: dict[str, Any] = field(default_factory=dict)
    step: float = STEP

    @property
    def box(self) -> Box:
        # Unknown: the object itself returns NaN outside.
        return EVERYWHERE

    @property
    def facts(self) -> Facts:
        return {"map": str(self.path), **origin_facts(self.stated)}

    def origins(self) -> list[dict[str, Any]]:
        unit = self.stated.unit or ("mag" if self.integrated else "mag/pc")
        return [origin_of(self, self.stated, unit)]

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return ("mean",)

    def reach(self, places: Places) -> np.ndarray:
        raise self._lacks("end", "finite distances")

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        answer = self._differenced if self.integrated else self._summed
        if integrated == self.integrated:
            answer = self._query
        return dict.fromkeys(kinds, answer(places))

    def _query(self, places: Places) -> np.ndarray:
        values = self.source.query(places.coords, **self.options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        plain = self.scale * plain
        if plain.shape != (len(places),):
            raise InputError(
                f"{type(self.source).__name__}.query returned shape {plain.shape} for "
                f"{len(places)} coordinates, expected one value each: choose a mode "
                "(--query mode=mean or median)"
            )
        return plain

    def _differenced(self, places: Places) -> np.ndarray:
        """Return the density from extinctions half a step before and behind."""
        half = self.step / 2
        near, far = np.maximum(places.distance - half, 0.0), places.distance + half
        # The extinction at the observer is zero, where maps return NaN.
        start = self._query(places.at(np.maximum(near, NOTHING)))
        start = np.where(near > 0, start, 0.0)
        return (self._query(places.at(far)) - start) / (far - near)

    def _summed(self, places: Places) -> np.ndarray:
        """Integrate by the midpoint rule, with at most ``step`` between nodes."""
        count = math.ceil(float(places.distance.max(initial=self.step)) / self.step)
        share = (np.arange(count) + 0.5) / count
        found = np.empty(len(places))
        # Coordinates and value of every node.
        for part in row_blocks(len(places), 128 * count):
            some = places.select(part)
            nodes = Places.along(some.directions, some.distance[:, None] * share)
            values = self._query(nodes).reshape(-1, count)
            found[part] = values.mean(axis=1) * some.distance
        return found


def open_package(name: str) -> Any:
    """Open a map object ``MODULE.CLASS`` of the package dustmaps.

    Raises `InputError` if the package, the map or its data are missing.
    """
    module_name, _, class_name = name.partition(".")
    with warnings.catch_warnings():
        # Without a configuration file the defaults apply.
        warnings.filterwarnings("ignore", "(?s).*Configuration file not found")
        try:
            base = importlib.import_module("dustmaps.map_base").DustMap
            module = importlib.import_module(f"dustmaps.{module_name}")
        except ImportError as error:
            raise InputError(
                f"no map {module_name!r} of the package dustmaps ({error}): is it "
                "installed (pip install 'dustmap[dustmaps]')?"
            ) from error
    found = {
        name: each
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, base) and each.__module__ == module.__name__
    }
    if class_name not in found:
        raise InputError(
            f"name one of the maps of dustmaps.{module_name} as {PACKAGE}{module_name}"
            f".CLASS: {', '.join(found) or 'there is none'}"
        )
    try:
        return found[class_name]()
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"dustmaps.{name} cannot be opened ({type(error).__name__}: {error}): "
            "fetch its data first, as described in its documentation"
        ) from error


def read_npz(path: Path) -> Cube:
    """Read a cube from a NumPy archive; raises `InputError` if it holds none.

    It holds ``density (x, y, z)`` in mag per unit of length of the axes, with x towards
    l = 0 and z towards the north Galactic pole, and the axes ``x``, ``y`` and ``z``
    [pc], or ``grid_kpc`` [kpc] for all three.
    """
    with np.load(path, allow_pickle=False) as archive:
        kpc = "grid_kpc" in archive
        try:
            axes = [archive["grid_kpc" if kpc else name] for name in "xyz"]
            scale = 1000.0 if kpc else 1.0
            x, y, z = (scale * np.asarray(axis, dtype=np.float64) for axis in axes)
            density = np.ascontiguousarray(archive["density"].T, dtype=np.float32)
            unit = "mag kpc-1" if kpc else "mag pc-1"
            return Cube(x=x, y=y, z=z, arrays={"density": density}, unit=unit)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path} holds {', '.join(sorted(archive.files))}; expected density "
                f"(x, y, z) and x, y, z [pc] or grid_kpc [kpc]: {error}"
            ) from error


# Readers of whole cubes, by form.
_READERS: dict[str, Callable[[Path], Cube]] = {
    "store": read_zarr,
    "npz": read_npz,
    "cube": read_fits,
}
