"""The command that goes on with a fit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pipelines.config import FitConfig


def command_of(source: Path, output: Path, config: FitConfig) -> str:
    """It names absolute paths, and every setting that is not the default."""
    default = values_by_key(FitConfig())
    words = ["dustmap", "fit", str(source.absolute()), "-o", str(output.absolute())]
    for key, value in values_by_key(config).items():
        if value != default[key] and value is not None:
            words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--resume"])


def values_by_key(config: FitConfig) -> dict[str, Any]:
    """The configuration as plain values, by ``section.key``."""
    tree = json.loads(config.model_dump_json())
    return {
        f"{section}.{key}": value
        for section, values in tree.items()
        for key, value in values.items()
    }
