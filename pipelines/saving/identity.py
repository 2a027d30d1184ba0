"""What a fit is a fit of: configuration, catalogue and code, by their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dustmap
import pipelines
from pipelines.config import FitConfig
from pipelines.storage.digests import digest_of, input_digests

# When checkpoints are written changes nothing in what is computed.
_WITHOUT_EFFECT = "checkpoint"
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Configuration by key; SHA-256 of every input file and of every source file."""

    configuration: dict[str, Any]
    inputs: list[dict[str, str]]
    version: str
    sources: dict[str, str]

    @classmethod
    def of(cls, source: Path, config: FitConfig) -> Identity:
        """Of a fit that begins now; every byte of the catalogue is read."""
        return cls(
            configuration=_keys(config),
            inputs=input_digests(source),
            version=dustmap.__version__,
            sources=_sources(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and strings, with one SHA-256 for each of the three."""
        parts = {
            "configuration": {"keys": self.configuration},
            "catalogue": {"files": self.inputs},
            "code": {"version": self.version, "files": self.sources},
        }
        return {name: {"sha256": _hash(part), **part} for name, part in parts.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Identity:
        """The inverse of `as_dict`."""
        return cls(
            configuration=plain["configuration"]["keys"],
            inputs=plain["catalogue"]["files"],
            version=plain["code"]["version"],
            sources=plain["code"]["files"],
        )

    def differences(self, earlier: Identity) -> list[str]:
        """In words, what is another than it was; empty if nothing is."""
        return [
            *(f"configuration: {line}" for line in self._other_keys(earlier)),
            *(f"catalogue: {line}" for line in self._other_inputs(earlier)),
            *(f"code: {line}" for line in self._other_code(earlier)),
        ]

    def _other_keys(self, earlier: Identity) -> Iterator[str]:
        now, then = self.configuration, earlier.configuration
        for key in sorted(now.keys() | then.keys()):
            old, new = then.get(key, "unknown"), now.get(key, "unknown")
            if old != new:
                yield f"{key} was {json.dumps(old)}, is {json.dumps(new)}"

    def _other_inputs(self, earlier: Identity) -> Iterator[str]:
        if self.inputs == earlier.inputs:
            return
        if len(self.inputs) != len(earlier.inputs):
            yield f"{len(earlier.inputs)} files before, {len(self.inputs)} now"
            return
        pairs = zip(earlier.inputs, self.inputs, strict=True)
        others = [(old, new) for old, new in pairs if old != new]
        for old, new in others[:_NAMED]:
            yield (
                f"was {old['name']} with SHA-256 {old['sha256'][:12]}..., is "
                f"{new['name']} with {new['sha256'][:12]}..."
            )
        if len(others) > _NAMED:
            yield f"and {len(others) - _NAMED} files more"

    def _other_code(self, earlier: Identity) -> Iterator[str]:
        if self.version != earlier.version:
            yield f"version was {earlier.version}, is {self.version}"
        now, then = self.sources, earlier.sources
        others = [n for n in sorted(now.keys() | then) if now.get(n) != then.get(n)]
        if others:
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            yield (
                f"{len(others)} source files are others: {', '.join(others[:_NAMED])}"
                f"{more}"
            )


def _keys(config: FitConfig) -> dict[str, Any]:
    """The configuration with one key per value."""
    tree = json.loads(config.model_dump_json(exclude={_WITHOUT_EFFECT}))
    return {
        f"{section}.{key}": value
        for section, values in tree.items()
        for key, value in values.items()
    }


def _sources() -> dict[str, str]:
    """Every module of both packages, by its path from their parent."""
    found = {}
    for package in (dustmap, pipelines):
        root = Path(str(package.__file__)).parent
        for module in sorted(root.rglob("*.py")):
            name = module.relative_to(root.parent).as_posix()
            found[name] = digest_of(module).sha256
    return found


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
