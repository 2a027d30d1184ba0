"""What a fit is a fit of: configuration, catalogue and code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dustmap
import pipelines
from pipelines.config import FitConfig
from pipelines.saving.command import values_by_key
from pipelines.storage.digests import digest_of, input_digests

# When checkpoints are written changes nothing in what is computed.
_WITHOUT_EFFECT = "checkpoint."
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Configuration by key; SHA-256 of every input file and of every source file."""

    configuration: dict[str, Any]
    inputs: list[dict[str, str]]
    code: dict[str, str]

    @classmethod
    def of(cls, source: Path, config: FitConfig) -> Identity:
        """Of a fit that begins now; every byte of the catalogue is read."""
        keys = values_by_key(config).items()
        return cls(
            configuration={k: v for k, v in keys if not k.startswith(_WITHOUT_EFFECT)},
            inputs=input_digests(source),
            code={"version": dustmap.__version__, **_sources()},
        )

    def differences(self, earlier: Identity) -> list[str]:
        """What has changed, a line each; empty if nothing has."""
        return [
            *_changes("configuration", self.configuration, earlier.configuration),
            *_changes("catalogue", _files(self.inputs), _files(earlier.inputs)),
            *_changes("code", self.code, earlier.code),
        ]


def _changes(part: str, now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    names = [n for n in sorted(now.keys() | before) if now.get(n) != before.get(n)]
    lines = [
        f"{part}: {name} was {json.dumps(before.get(name, 'unknown'))}, is "
        f"{json.dumps(now.get(name, 'unknown'))}"
        for name in names[:_SHOWN]
    ]
    return [*lines, f"{part}: {len(names)} in all"] if len(names) > _SHOWN else lines


def _files(inputs: list[dict[str, str]]) -> dict[str, str]:
    """SHA-256 by name, which folders of a catalogue may share."""
    files = enumerate(inputs, start=1)
    return {f"file {n}, {file['name']},": file["sha256"] for n, file in files}


def _sources() -> dict[str, str]:
    """Every module of both packages, by its path from their parent."""
    found = {}
    for package in (dustmap, pipelines):
        root = Path(str(package.__file__)).parent
        for module in sorted(root.rglob("*.py")):
            name = module.relative_to(root.parent).as_posix()
            found[name] = digest_of(module).sha256
    return found
