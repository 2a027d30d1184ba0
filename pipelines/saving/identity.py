"""What a fit is a fit of: configuration, catalogue and code."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dustmap
from pipelines.config import FitConfig
from pipelines.storage.digests import digest_of, input_digests

# When checkpoints are written, and how processes share the work, changes nothing but
# rounding in what is computed.
_WITHOUT_EFFECT = ("checkpoint.", "inference.teams")
_SHOWN = 20
_PARENT = Path(str(dustmap.__file__)).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Configuration by key; SHA-256 of every input file and of the code of a fit."""

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
            code={"version": dustmap.__version__, **code_digests(_PARENT)},
        )

    def differences(self, earlier: Identity) -> list[str]:
        """What has changed, a line each; empty if nothing has."""
        return [
            *_changes("configuration", self.configuration, earlier.configuration),
            *_changes("catalogue", _files(self.inputs), _files(earlier.inputs)),
            *_changes("code", self.code, earlier.code),
        ]


def command_of(source: Path, output: Path, config: FitConfig) -> str:
    """The command that resumes a fit: absolute paths, all settings but the defaults."""
    default = values_by_key(FitConfig())
    words = ["dustmap", "fit", str(source.absolute()), "-o", str(output.absolute())]
    for key, value in values_by_key(config).items():
        if value != default[key] and value is not None:
            words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--resume"])


def values_by_key(config: FitConfig) -> dict[str, Any]:
    """The configuration as plain values, by ``section.key``."""
    return {
        f"{section}.{key}": value
        for section, values in json.loads(config.model_dump_json()).items()
        for key, value in values.items()
    }


def code_digests(parent: Path) -> dict[str, str]:
    """SHA-256 of the modules that decide what a fit computes, by path.

    These are all of ``dustmap``, and of ``pipelines`` what ``pipelines.fit`` imports
    when it is loaded, directly or not. What is imported within functions does not
    count: pictures, for example.
    """
    modules = {*parent.glob("dustmap/**/*.py"), *_imported(parent, "pipelines.fit")}
    paths = {module.relative_to(parent).as_posix(): module for module in modules}
    return {name: digest_of(paths[name]).sha256 for name in sorted(paths)}


def _imported(parent: Path, root: str) -> set[Path]:
    """The modules of ``pipelines`` that are loaded with one of them."""
    found, left = set(), [*_modules(parent, root)]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            for name in _names(module):
                left += _modules(parent, name)
    return found


def _names(module: Path) -> Iterator[str]:
    """What a module imports at its top level; of a package perhaps only an object."""
    for node in ast.parse(module.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _modules(parent: Path, name: str) -> Iterator[Path]:
    """The files that are loaded for a dotted name: packages on the way, and itself."""
    parts = name.split(".")
    if parts[0] != "pipelines":
        return
    for depth in range(1, len(parts) + 1):
        path = parent.joinpath(*parts[:depth])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                yield file


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
