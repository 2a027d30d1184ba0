"""What a REFERENCE is, by its name, form and columns."""

from __future__ import annotations

from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.compare.tables import table_kind
from pipelines.others import PACKAGE

HELD_OUT = "held-out"


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
