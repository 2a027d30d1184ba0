"""Loading of a validated configuration from TOML, ``--set`` texts and keywords.

Errors are one line: source, key, expected value, actual value.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipelines.base.errors import InputError
from pipelines.config.base import Settings
from pipelines.config.gone import GONE, drop_gone

# Most errors in a message.
_NAMED = 5

AnySettings = TypeVar("AnySettings", bound=Settings)


def load_config(
    model: type[AnySettings],
    path: Path | None = None,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> AnySettings:
    """Read a configuration of the class ``model``, and validate it.

    ``path`` is a TOML file. ``overrides``, ``key.sub=value``, are applied in order
    after it; the value is TOML, where a bare word, or a number with a unit, is a
    string. ``settings`` are values by ``"key.sub"``, or sections of them, applied last:
    ``{"budget.memory_gib": 2, "box": {"spacing": 50}}``. Keys that are gone are
    refused, and ignored in the record of a run.

    Raises `InputError` in one line: source, key, expected value, actual value.
    """
    tree = {} if path is None else read_toml(path)
    if path is not None and (path.parent / "run.json").is_file():
        drop_gone(tree, path)
    sources = [("", str(path or "settings"))]
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key.strip()):
            raise InputError(f"--set {text}: expected KEY=VALUE or SECTION.KEY=VALUE")
        sources.append((key.strip(), f"--set {text}"))
        _put(tree, *sources[-1], _parse(value.strip(), text))
    if not isinstance(settings, Mapping | None):
        raise InputError(f"settings: expected a mapping, got {type(settings).__name__}")
    for key, value in _flat(settings or {}):
        sources.append((key, "settings"))
        _put(tree, *sources[-1], value)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # An unknown key explains more than its consequences elsewhere.
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    faults = [_explain(model, detail, sources) for detail in details]
    more = "; ..." if len(faults) > _NAMED else ""
    raise InputError("; ".join(faults[:_NAMED]) + more)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises `InputError` if it is absent or not valid."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"cannot read the file ({error.strerror})"
    except UnicodeDecodeError:
        reason = "not a TOML file (expected UTF-8 text)"
    except tomllib.TOMLDecodeError as error:
        reason = f"not valid TOML: {error}"
    raise InputError(f"{path}: {reason}")


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", v) for inner, v in _flat(value))
        else:
            yield str(key), value


def _put(tree: dict[str, Any], key: str, source: str, value: Any) -> None:
    """Put one value into ``tree``, and make its sections."""
    *sections, last = key.split(".")
    for depth, name in enumerate(sections, start=1):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            above = ".".join(sections[:depth])
            raise InputError(f"{source}: {above} is a value, not a section")
    tree[last] = value


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
    raise InputError(
        f"--set {text}: {value!r} is neither a TOML value (number, true, false, "
        '"text", a list in brackets) nor one word'
    )


def _explain(
    model: type[Settings], detail: ErrorDetails, sources: list[tuple[str, str]]
) -> str:
    """Return ``source: key: expected and actual value``."""
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in detail["loc"])
    key = "".join(parts).removeprefix(".")
    # The last source that set the key, a part of it, or its section.
    own = f"{key.partition('[')[0]}."
    ways = [
        source
        for name, source in sources
        if not (name and key)
        or own.startswith(f"{name}.")
        or f"{name}.".startswith(own)
    ]
    if key in GONE:
        return f"{ways[-1]}: {key} is gone: {GONE[key]}"
    if detail["type"] == "extra_forbidden":
        text = "unknown key" + _suggest(model, detail["loc"])
    elif detail["type"] == "value_error":
        text = detail["msg"].removeprefix("Value error, ")
    else:
        text = f"{detail['msg'][0].lower()}{detail['msg'][1:]}, got {detail['input']!r}"
    return ": ".join(word for word in (ways[-1], key, text) if word)


def _suggest(model: type[Settings], location: tuple[int | str, ...]) -> str:
    """Name the nearest known key: in the same section, or anywhere else."""
    name = str(location[-1]).lower().replace("-", "_")
    known = [(section,) for section in model.model_fields]
    known += [tuple(key.split(".")) for key, _ in _flat(model().model_dump())]
    here = [key for key in known if key[:-1] == location[:-1]]
    for keys in (here, known):
        match = difflib.get_close_matches(name, [key[-1] for key in keys], n=1)
        if match:
            places = dict.fromkeys(".".join(k) for k in keys if k[-1] == match[0])
            return f" (did you mean {' or '.join(places)}?)"
    return f" (known here: {', '.join(dict.fromkeys(key[-1] for key in here))})"
