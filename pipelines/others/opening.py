"""Another map by its name: a run, a cube of any format, one of package dustmaps."""

from __future__ import annotations

import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import read_fits
from pipelines.formats.zarr import read_zarr
from pipelines.others.maps import OtherMap, cube_map, queried_map, read_npz, run_map
from pipelines.run.folder import read_run

PACKAGE = "dustmaps:"


def open_other(
    reference: str,
    *,
    factor: float | None = None,
    integrated: bool | None = None,
    query: dict[str, Any] | None = None,
) -> OtherMap:
    """The map that ``reference`` names.

    Parameters
    ----------
    reference
        A run folder, a map.zarr or map.fits, an archive (`read_npz`), or
        ``dustmaps:MODULE.CLASS``.
    factor
        What turns its values into mag (mag/pc) in the band that is wanted; needed of a
        map of dustmaps, else 1 unless given.
    integrated, query
        Of a map of dustmaps: whether it gives extinctions from the observer, and
        keywords of its ``query``.

    Raises
    ------
    InputError
        If it cannot be opened, or a choice is missing.
    """
    path = Path(reference)
    if reference.startswith(PACKAGE):
        if factor is None or integrated is None:
            raise InputError(
                f"{reference}: say what turns its values into mag (or mag/pc) in the "
                "band of this map (--factor), and whether they are extinctions from "
                "the observer (--integrated) or densities (--differential); see its "
                "docs"
            )
        source = open_package(reference.removeprefix(PACKAGE))
        return queried_map(
            source, integrated=integrated, factor=factor, options=query or {}
        )
    scale = 1.0 if factor is None else factor
    if (path / "run.json").is_file():
        return run_map(read_run(path), scale)
    return cube_map(open_cube_of(path), scale)


def open_cube_of(path: Path) -> Cube:
    """A cube of any format: map.zarr, map.fits, or an archive (`read_npz`)."""
    if not path.exists():
        raise InputError(
            f"{path} does not exist: expected a run, map.zarr, map.fits, an archive "
            f".npz, or {PACKAGE}MODULE.CLASS"
        )
    read = read_zarr if path.is_dir() else read_fits
    return (read_npz if path.suffix == ".npz" else read)(path)


def open_package(name: str) -> Any:
    """The map object of the package dustmaps: ``MODULE`` or ``MODULE.CLASS``.

    Raises
    ------
    InputError
        If the package, the map or its data are not there.
    """
    module_name, _, class_name = name.partition(".")
    found = _maps_of(module_name)
    local = [n for n in found if n.endswith("Query") and "Web" not in n]
    wanted = class_name or (local[0] if len(local) == 1 else "")
    if wanted not in found:
        raise InputError(
            f"name one of the maps of dustmaps.{module_name} as {PACKAGE}{module_name}"
            f".CLASS: {', '.join(found) or 'there is none'}"
        )
    try:
        return found[wanted]()
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"dustmaps.{module_name}.{wanted} cannot be opened "
            f"({type(error).__name__}: {error}): fetch its data first, as its "
            "documentation says, or open it in Python and call compare_map"
        ) from error


def _maps_of(module_name: str) -> dict[str, Any]:
    """The classes of maps that a module of dustmaps defines."""
    with warnings.catch_warnings():
        # Of a configuration that need not exist: its defaults are what is meant.
        warnings.filterwarnings("ignore", "(?s).*Configuration file not found")
        try:
            base = importlib.import_module("dustmaps.map_base").DustMap
            module = importlib.import_module(f"dustmaps.{module_name}")
        except ImportError as error:
            raise InputError(
                f"no map {module_name!r} of the package dustmaps ({error}): is it "
                "installed (pip install 'dustmap[dustmaps]')?"
            ) from error
    return {
        name: each
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, base) and each.__module__ == module.__name__
    }
