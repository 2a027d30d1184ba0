"""From a TOML file and ``--set`` strings to a validated configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pipelines.base.errors import InputError
from pipelines.config.base import Settings
from pipelines.config.diagnosis import explain

T = TypeVar("T", bound=Settings)


def load_config(
    model: type[T], path: Path | None = None, overrides: Sequence[str] = ()
) -> T:
    """Read and validate a configuration.

    Parameters
    ----------
    model
        The configuration's class.
    path
        A TOML file; ``None`` for the defaults.
    overrides
        ``key.sub=value`` strings, applied in order after the file. The value is
        TOML; a bare word, or a number with a unit, is a string.

    Raises
    ------
    InputError
        In one line: which file or ``--set``, which key, what was expected, what came.
    """
    tree = {} if path is None else _read(path)
    for text in overrides:
        _apply(tree, text)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        message = explain(model, error, path=path, overrides=overrides)
    raise InputError(message)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot read the configuration ({error.strerror})"
    except UnicodeDecodeError:
        reason = "not a TOML file (expected UTF-8 text)"
    except tomllib.TOMLDecodeError as error:
        reason = f"not valid TOML: {error}"
    raise InputError(f"{path}: {reason}")


def _apply(tree: dict[str, Any], text: str) -> None:
    """Put one override into ``tree``, making sections on the way."""
    key, equals, value = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in names):
        raise InputError(f"--set {text}: expected KEY=VALUE or SECTION.KEY=VALUE")
    for depth, name in enumerate(names[:-1], start=1):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            above = ".".join(names[:depth])
            raise InputError(f"--set {text}: {above} is a value, not a section")
    tree[names[-1]] = _parse(value.strip(), text)


def _parse(value: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    # A value with a line break could carry further keys.
    if parsed.keys() == {"value"}:
        return parsed["value"]
    if re.fullmatch(r"[A-Za-z][\w.-]*|[-+]?[\d.]+ ?[A-Za-z]+", value):
        return value
    hint = ""
    if "," in value and "[" not in value:
        key = text.partition("=")[0].strip()
        hint = f"; a list stands in brackets: --set '{key}=[{value}]'"
    raise InputError(
        f"--set {text}: {value!r} is neither a TOML value (number, true, false, "
        f'"text", [list]) nor one word{hint}'
    )
