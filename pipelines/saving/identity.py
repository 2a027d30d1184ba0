"""What a fit is a fit of: configuration, catalogue and version of the program."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dustmap
from pipelines.config import FitConfig
from pipelines.storage.digests import input_digests

# When states are written, and how processes share the work, changes only rounding.
_WITHOUT_EFFECT = ("checkpoint.", "inference.teams")
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Configuration by key, SHA-256 of every input file, and version of the program."""

    configuration: dict[str, Any]
    inputs: list[dict[str, str]]
    version: str

    @classmethod
    def of(cls, source: Path, config: FitConfig) -> Identity:
        """Of a fit that begins now; every byte of the catalogue is read."""
        keys = values_by_key(config).items()
        return cls(
            configuration={k: v for k, v in keys if not k.startswith(_WITHOUT_EFFECT)},
            inputs=input_digests(source),
            version=dustmap.__version__,
        )

    def differences(self, earlier: Identity) -> list[str]:
        """Describe what has changed, a line each."""
        # Folders of a catalogue may hold files of one name.
        now, before = (
            {f"file {n}, {f['name']},": f["sha256"] for n, f in enumerate(files, 1)}
            for files in (self.inputs, earlier.inputs)
        )
        version = {"version": self.version}, {"version": earlier.version}
        return [
            *_changes("configuration", self.configuration, earlier.configuration),
            *_changes("catalogue", now, before),
            *_changes("program", *version),
        ]


def command_of(source: Path, output: Path, config: FitConfig) -> str:
    """Return the command that resumes a fit: all settings but the defaults."""
    default = values_by_key(FitConfig())
    words = ["dustmap", "fit", str(source.absolute()), "-o", str(output.absolute())]
    for key, value in values_by_key(config).items():
        if value != default[key] and value is not None:
            words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--resume"])


def values_by_key(config: FitConfig) -> dict[str, Any]:
    """Return the configuration as plain values, by ``section.key``."""
    return {
        f"{section}.{key}": value
        for section, values in json.loads(config.model_dump_json()).items()
        for key, value in values.items()
    }


def _changes(part: str, now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    names = [n for n in sorted(now.keys() | before) if now.get(n) != before.get(n)]
    lines = [
        f"{part}: {name} was {json.dumps(before.get(name, 'unknown'))}, is "
        f"{json.dumps(now.get(name, 'unknown'))}"
        for name in names[:_SHOWN]
    ]
    return [*lines, f"{part}: {len(names)} in all"] if len(names) > _SHOWN else lines
