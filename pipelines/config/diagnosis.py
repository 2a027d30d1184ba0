"""One clear line for a configuration that does not fit its model."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipelines.config.base import Settings

# Further keys that are named.
_NAMED = 5

EXPECTED = {
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "a section of keys",
    "string_type": "text",
}
"""What to call the types of pydantic's errors that name Python's own types."""


def explain(
    model: type[Settings],
    error: ValidationError,
    *,
    path: Path | None,
    overrides: Sequence[str],
) -> str:
    """Return ``source: key: expected ..., got ...`` for the first error.

    The keys of further errors follow, so that nobody expects one mended key to be
    enough.
    """
    details = error.errors(include_url=False)
    # An unknown key explains more than what its absence caused elsewhere.
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    key, *others = dict.fromkeys(_dotted(detail) for detail in details)
    words = (_source(key, path, overrides), key, _describe(model, details[0]))
    message = ": ".join(word for word in words if word)
    if not others:
        return message
    rest = ", ..." if len(others) > _NAMED else ""
    return f"{message} (wrong too: {', '.join(others[:_NAMED])}{rest})"


def _source(key: str, path: Path | None, overrides: Sequence[str]) -> str:
    """Name what set ``key``, or everything that could have set keys inside it."""
    inside = []
    for text in reversed(overrides):
        name = text.partition("=")[0].strip()
        if key == name or key.startswith((f"{name}.", f"{name}[")):
            return f"--set {text}"
        if not key or name.startswith(f"{key}."):
            inside.insert(0, f"--set {text}")
    return " ".join([*([] if path is None else [str(path)]), *inside])


def _dotted(detail: ErrorDetails) -> str:
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in detail["loc"])
    return "".join(parts).removeprefix(".")


def _describe(model: type[Settings], detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return "unknown key" + _suggest(model, detail["loc"])
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    expected = EXPECTED.get(kind) or detail["msg"].removeprefix("Input should be ")
    if expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return f"expected {expected}, got {_show(value)}" + _nearest(detail)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return "a section" if isinstance(value, dict) else repr(value)


def _nearest(detail: ErrorDetails) -> str:
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    choices = detail.get("ctx", {})["expected"].replace(" or ", ", ").split(", ")
    match = difflib.get_close_matches(repr(detail["input"].lower()), choices, n=1)
    return f" (did you mean {match[0]}?)" if match else ""


def _suggest(model: type[Settings], location: tuple[int | str, ...]) -> str:
    """Name the nearest known key: in the same section, or anywhere else."""
    name = str(location[-1]).lower().replace("-", "_")
    known = list(_keys(model))
    here = [key for key in known if key[:-1] == location[:-1]]
    for keys in (here, known):
        match = difflib.get_close_matches(name, [key[-1] for key in keys], n=1)
        if match:
            places = [".".join(key) for key in keys if key[-1] == match[0]]
            return f" (did you mean {' or '.join(places)}?)"
    return f" (known here: {', '.join(key[-1] for key in here)})"


def _keys(
    model: type[Settings], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*above, name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, Settings):
            yield from _keys(info.annotation, (*above, name))
