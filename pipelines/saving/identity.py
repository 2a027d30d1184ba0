"""The identity of a fit: configuration, catalogue and version of the program."""

from __future__ import annotations

import json
from typing import Any

import dustmap
from pipelines.config import FitConfig


def identity_of(config: FitConfig, inputs: list[dict[str, str]]) -> dict[str, Any]:
    """Return settings, SHA-256 of every input file, and version, by name."""
    # Settings of checkpoints and processes change only rounding.
    settings = {
        f"configuration: {section}.{key}": value
        for section, values in config.model_dump(mode="json").items()
        for key, value in values.items()
        if not f"{section}.{key}".startswith(("checkpoint.", "inference.teams"))
    }
    # Folders of a catalogue may hold files of the same name.
    files = {
        f"catalogue: file {number}, {file['name']},": file["sha256"]
        for number, file in enumerate(inputs, start=1)
    }
    return {**settings, **files, "program: version": dustmap.__version__}


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Describe the differences between two identities, a line each, 20 at most."""
    names = sorted(n for n in now.keys() | before if now.get(n) != before.get(n))
    lines = []
    for name in names[:20]:
        was, has = (json.dumps(facts.get(name, "unknown")) for facts in (before, now))
        lines.append(f"{name} was {was}, is {has}")
    more = [f"{len(names)} differences in all"] if len(names) > 20 else []
    return lines + more
