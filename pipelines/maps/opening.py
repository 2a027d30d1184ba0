"""Opening of a map from a path, a name or an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import is_own, open_checked, read_cube_and_curves, read_fits
from pipelines.formats.healpix import read_healpix
from pipelines.formats.zarr import is_own_store, is_url, read_zarr
from pipelines.maps.answers import Answers
from pipelines.maps.queried import PACKAGE, open_queried
from pipelines.maps.stored import Stored, of_cube, of_sky_maps, open_store
from pipelines.run.record import STORE, read_run_record
from pipelines.saving.workspace import SUFFIX, unfinished

Form = Literal["run", "store", "npz", "cube", "sky", "stars"]


def form_of(path: Path) -> Form:
    """Return the form of a map on disk.

    A folder is a run, finished or not, unless it is a store; a file with no other known
    signature is assumed to be FITS. Raises `InputError` if the path does not exist, is
    another program's, or a FITS file is damaged.
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
            if not is_own_store(path):
                raise _foreign(path)
            return "store"
        is_run = any((path / name).is_file() for name in ("run.json", "config.toml"))
        return "stars" if not is_run and any(path.glob("[!.]*.parquet")) else "run"
    if path.suffix == ".npz":
        return "npz"
    with path.open("rb") as stream:
        # As long as the first header of a FITS file of this program.
        head = stream.read(1 << 16)
    if head[:4] == b"PAR1" or path.suffix in (".csv", ".ecsv", ".vot", ".parquet"):
        return "stars"
    if head.startswith((b"\x89HDF", b"CDF", b"\x1f\x8b")) or (
        head.startswith(b"SIMPLE  =") and not is_own(head)
    ):
        raise _foreign(path)
    if head.startswith(b"PK"):
        raise InputError(
            f"{path} is a zip: a map store in it opens as zip://NAME.zarr::{path}"
        )
    with open_checked(path) as hdus:
        table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
        return "sky" if table else "cube"


def _foreign(path: Path) -> InputError:
    return InputError(
        f"{path} was not written by this program: give its values as an object with "
        "query(coordinates), open_map(object, integrated=, factor=); the page 'With "
        "other tools' of the documentation has a FITS cube in a few lines"
    )


def open_answers(reference: Any, **stated: Any) -> Answers:
    """Open a map.

    A path is a run folder, whose map store is opened; a map store (``dustmap export RUN
    --zarr map.zarr``), read chunk by chunk around places; or another export
    (``map.fits``, ``map.healpix.fits``) or an archive (`read_npz`), read whole and with
    fewer products. A store may be at a URL of fsspec (https, s3). Objects with
    ``query``, and ``dustmaps:NAME``, are opened with what is ``stated`` by
    `open_queried`.

    Raises `InputError` if the path is none of these, or is incomplete or altered, or as
    `open_queried`.
    """
    if is_queried(reference):
        return open_queried(reference, **stated)
    _refuse_facts(reference, stated)
    if is_url(reference):
        return open_store(reference)
    path = Path(reference)
    match form_of(path):
        case "run":
            return open_run(path)
        case "store":
            return open_store(path)
        case "sky":
            return of_sky_maps(path, read_healpix(path))
        case "cube":
            return of_cube(path, *read_cube_and_curves(path))
        case "npz":
            return of_cube(path, read_npz(path))
    raise InputError(
        f"{path} is a table of stars, not a map: fit a map to it with `dustmap fit` "
        "(after `dustmap ingest`), and open the run folder"
    )


def open_run(path: str | Path) -> Stored:
    """Open the map of a run folder.

    Raises `InputError` if it is none, is not finished or was altered, or its map is of
    another fit.
    """
    folder = Path(path)
    record = read_run_record(folder)
    store = folder / STORE
    if not store.is_dir():
        raise InputError(
            f"{folder} has no {STORE}: an earlier version wrote this run, or the store "
            "was removed. Fit again"
        )
    answers = open_store(store)
    if answers.meta.get("fit") != record["provenance"]["fit"]:
        raise InputError(
            f"{store} is the map of another fit than {folder}: restore its own, or fit "
            "again"
        )
    verdict = str(record["summary"]["verdict"])
    return replace(answers, path=folder, run=folder, verdict=verdict)


def _refuse_facts(reference: Any, stated: dict[str, Any]) -> None:
    """Raise `InputError` if something is stated of a map that says it itself."""
    if given := [name for name, value in stated.items() if value not in (None, {})]:
        raise InputError(
            f"{reference} says what its values are: {', '.join(given)} (--integrated, "
            "--differential, --query) go with maps of the package dustmaps"
        )


def is_queried(reference: Any) -> bool:
    """Return true for ``dustmaps:NAME``, and for objects that are no paths."""
    if isinstance(reference, str):
        return reference.startswith(PACKAGE)
    return not isinstance(reference, Path)


def open_other(
    reference: Any,
    first: Answers,
    *,
    factor: float | None = None,
    step: float | None = None,
    **stated: Any,
) -> tuple[Answers, float]:
    """Open a map, which may be open already, to compare with a ``first`` one.

    A cube is always integrated between its own points, and is NaN along rays on which
    it has no dust. Returns the map, and the factor from its values to mag (mag/pc) in
    the band of the first: the ``factor``, which a map of the package dustmaps applies
    itself (`open_queried`, with its ``step`` and what is ``stated``).

    Raises `InputError` if the map cannot be opened, or both bands are known and differ
    and no factor is given.
    """
    reference = getattr(reference, "answers", reference)
    times = 1.0 if factor is None else factor
    if isinstance(reference, Answers):
        _refuse_facts(reference.path, stated)
        second = reference
    elif is_queried(reference):
        second = open_queried(reference, factor=factor, step=step, **stated)
        times = 1.0
    else:
        _refuse_facts(reference, stated)
        path = Path(reference)
        form = form_of(path)
        if form in _READERS:
            # A cube without extinctions of its own.
            second = of_cube(path, _READERS[form](path), blank=True)
        else:
            second = open_answers(path)
    bands = first.known_band, second.known_band
    if factor is None and all(bands) and len({*bands}) > 1:
        raise InputError(
            f"{first.path} is in {bands[0]}, {second.path} in {bands[1]}: give the "
            "factor from the latter to the former (--factor, factor=)"
        )
    return second, times


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
