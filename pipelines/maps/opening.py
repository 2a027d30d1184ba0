"""From a path, a name or an object to a map: nothing else looks at what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import open_checked, read_fits
from pipelines.formats.healpix import SHELLS, read_healpix, read_shells
from pipelines.formats.vtk import read_vti
from pipelines.formats.zarr import read_zarr
from pipelines.maps.answers import Answers
from pipelines.maps.others import PACKAGE, STEP, QueriedMap, open_package, read_npz
from pipelines.maps.stored import of_cube, of_shells, of_sky_maps, open_store
from pipelines.saving.workspace import SUFFIX, unfinished

Form = Literal["run", "store", "vti", "npz", "cube", "sky", "shells", "stars"]
_TABLES = (".csv", ".ecsv", ".vot", ".parquet")


def form_of(path: Path) -> Form:
    """Return what a path holds.

    A folder is a run, finished or not, unless it is a store; a file that begins like
    none of the others is taken for FITS.

    Raises
    ------
    InputError
        If nothing is there, or a FITS file is damaged.
    """
    if unfinished(path) is not None and (
        path.name.endswith(SUFFIX) or not path.exists()
    ):
        return "run"
    if not path.exists():
        raise InputError(
            f"{path} does not exist: expected what `dustmap export RUN` wrote "
            "(map.zarr, map.fits, map.vti, map.healpix.fits or shells), or the folder "
            "of a run"
        )
    if path.is_dir():
        if (path / "zarr.json").is_file():
            return "store"
        is_run = any((path / name).is_file() for name in ("run.json", "config.toml"))
        return "stars" if not is_run and any(path.glob("*.parquet")) else "run"
    if path.suffix in (".vti", ".npz"):
        return "vti" if path.suffix == ".vti" else "npz"
    with path.open("rb") as stream:
        if stream.read(4) == b"PAR1" or path.suffix in _TABLES:
            return "stars"
    with open_checked(path) as hdus:
        if any(hdu.name == SHELLS for hdu in hdus):
            return "shells"
        table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
        return "sky" if table else "cube"


def open_answers(path: str | Path) -> Answers:
    """Open a map.

    Parameters
    ----------
    path
        A map store (``dustmap export RUN --zarr map.zarr``), of which only the chunks
        around places will be read; another export (``map.fits``, ``map.vti``,
        ``map.healpix.fits`` or shells) or an archive (`read_npz`), which is read whole
        and knows less; or a run folder, which computes every answer anew.

    Raises
    ------
    InputError
        If it is none of these, or is incomplete or altered.
    """
    path = Path(path)
    match form := form_of(path):
        case "run":
            return open_run(path)
        case "store":
            return open_store(path)
        case "sky":
            return of_sky_maps(path, read_healpix(path))
        case "shells":
            return of_shells(path, read_shells(path))
        case "stars":
            raise InputError(
                f"{path} is a table of stars, not a map: fit a map to it with `dustmap "
                "fit` (after `dustmap ingest`), and name that"
            )
    return of_cube(path, _read_cube(path, form))


def open_run(path: str | Path) -> Answers:
    """Open the folder of a run, and nothing else.

    Raises
    ------
    InputError
        If it is none, or is incomplete or altered.
    """
    # Which need torch.
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
) -> Answers:
    """Open a map that continues another one, or is compared with it.

    A cube is integrated between its own points, whatever else its file holds, and is
    not known along rays on which it has no dust.

    Parameters
    ----------
    reference
        What `open_answers` opens, ``dustmaps:MODULE.CLASS``, a map, or an object with
        ``.query(coordinates)``.
    factor
        What turns its values into mag (mag/pc) in the band that is wanted; needed of a
        map that dustmaps names, else 1 unless given.
    integrated, query, step
        Of objects with a query: whether it gives extinctions from the observer,
        keywords of it, and the spacing of differences and integrals [pc].

    Raises
    ------
    InputError
        If it cannot be opened, or a choice is missing.
    """
    scale = 1.0 if factor is None else factor
    named = isinstance(reference, str) and reference.startswith(PACKAGE)
    if named:
        if factor is None:
            raise InputError(
                f"{reference}: say with --factor what turns its values into mag (or, "
                "with --differential, mag/pc) in the band of this map; see its docs"
            )
        source = open_package(reference.removeprefix(PACKAGE))
    elif isinstance(reference, str | Path):
        path = Path(reference)
        form = form_of(path)
        if form not in ("store", "vti", "npz", "cube"):
            return open_answers(path).converted(None, scale)
        return of_cube(path, _read_cube(path, form), blank=True).converted(None, scale)
    elif isinstance(reference, Answers):
        return reference.converted(None, scale)
    else:
        source = reference
    name = type(source).__name__
    if not hasattr(source, "query"):
        raise InputError(f"{name} is no map: it has no .query")
    if integrated is None:
        raise InputError(
            f"say what {name}.query gives: extinction (integrated=True, --integrated) "
            "or density (integrated=False, --differential)"
        )
    found = QueriedMap(
        path=Path(reference if named else name),
        source=source,
        integrated=integrated,
        options=query or {},
        step=STEP if step is None else step,
    )
    return found.converted(None, scale)


def _read_cube(path: Path, form: Form) -> Cube:
    """Read a whole cube of any format."""
    if form == "store":
        return read_zarr(path)
    if form == "vti":
        return read_vti(path)
    return read_npz(path) if form == "npz" else read_fits(path)
