"""What a run says of itself, without its posterior: ``run.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.saving.workspace import SUFFIX, unfinished
from pipelines.storage.atomic import check_manifest

STORE = "map.zarr"
"""Name of the map in the folder of a run."""


def read_run_record(folder: Path, *, whole: bool = False) -> dict[str, Any]:
    """Return ``run.json`` of a finished run, with plan, summary and provenance.

    It is compared with its SHA-256, as are all files of a ``whole`` run; of the others
    presence and size are checked.

    Raises `InputError` if the folder is not a run, is incomplete, or was altered.
    """
    begun = unfinished(folder)
    if begun is not None and (folder.name.endswith(SUFFIX) or not folder.exists()):
        raise InputError(
            f"{begun.output}: this fit is not finished: continue with its original "
            f"command and --resume (`dustmap status {begun.output}` shows its progress)"
        )
    if not (folder / "run.json").is_file():
        raise InputError(
            f"{folder} is not a run folder: it has no run.json (make one with "
            "`dustmap fit stars.parquet -o RUN`)"
        )
    check_manifest(folder, allow_extra=True, hashed=None if whole else ["run.json"])
    return json.loads((folder / "run.json").read_text())
