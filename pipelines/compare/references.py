"""What a REFERENCE is, by its name, form and columns."""

from __future__ import annotations

import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.compare.tables import table_kind

HELD_OUT = "held-out"
PACKAGE = "dustmaps:"


def kind_of(reference: str) -> str:
    """What a reference is, by its name, form and columns.

    Raises
    ------
    InputError
        If it cannot be determined.
    """
    path = Path(reference)
    if reference == HELD_OUT:
        return "stars"
    if reference.startswith(PACKAGE):
        return "map"
    if not path.exists():
        raise InputError(
            f"{reference} does not exist: expected a file, a map or run, the word "
            f"{HELD_OUT}, or {PACKAGE}NAME"
        )
    if path.is_dir():
        is_map = any((path / name).is_file() for name in ("run.json", "zarr.json"))
        return "map" if is_map else "stars"
    if path.suffix in (".npz", ".fits", ".fit"):
        return "map"
    if path.suffix in (".parquet", ".parq", ".pq"):
        return "stars"
    return table_kind(path)


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
