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
    "tuple_type": "a list",
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
    enough. The same fault in all entries of a list is one, of the list.
    """
    details = error.errors(include_url=False)
    # An unknown key explains more than what its absence caused elsewhere.
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    alike = [detail for detail in details if _is_alike(detail, first)]
    details = [first, *(other for other in details[1:] if other not in alike)]
    key = _dotted(first["loc"][:-1] if len(alike) > 1 else first["loc"])
    source = _source(key, path, overrides)
    words = [part for part in (source, key, _describe(model, first)) if part]
    more = ""
    if len(details) > 1:
        others = list(dict.fromkeys(_dotted(d["loc"]) for d in details[1:]))
        rest = ", ..." if len(others) > _NAMED else ""
        more = f" (wrong too: {', '.join(others[:_NAMED])}{rest})"
    return ": ".join(words) + more


def _is_alike(detail: ErrorDetails, first: ErrorDetails) -> bool:
    """Whether this is the same fault in an entry of the same list."""
    return (
        isinstance(first["loc"][-1] if first["loc"] else None, int)
        and detail["loc"][:-1] == first["loc"][:-1]
        and (detail["type"], detail["input"]) == (first["type"], first["input"])
    )


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


def _dotted(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            key += f".{part}" if key else part
    return key


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
    if isinstance(value, dict):
        return "a section"
    return repr(value)


def _nearest(detail: ErrorDetails) -> str:
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    choices = detail.get("ctx", {})["expected"].replace(" or ", ", ").split(", ")
    match = difflib.get_close_matches(repr(detail["input"].lower()), choices, n=1)
    return f" (did you mean {match[0]}?)" if match else ""


def _suggest(model: type[Settings], location: tuple[int | str, ...]) -> str:
    """Name the nearest known key: in the same section, or anywhere else."""
    section, name = location[:-1], str(location[-1])
    known = list(_keys(model))
    here = [key[-1] for key in known if key[:-1] == section]
    match = difflib.get_close_matches(name.lower().replace("-", "_"), here, n=1)
    if match:
        return f" (did you mean {'.'.join((*map(str, section), match[0]))}?)"
    elsewhere = {".".join(key): key[-1] for key in known}
    match = difflib.get_close_matches(name.lower(), elsewhere.values(), n=1)
    if match:
        places = [key for key, last in elsewhere.items() if last == match[0]]
        return f" (did you mean {' or '.join(places)}?)"
    return f" (known here: {', '.join(here)})"


def _keys(model: type[Settings], above: tuple[str, ...] = ()) -> Iterator[tuple]:
    for name, info in model.model_fields.items():
        yield (*above, name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, Settings):
            yield from _keys(info.annotation, (*above, name))
