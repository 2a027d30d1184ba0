"""From a TOML file, ``--set`` texts and keywords to a validated configuration.

What does not fit is refused in one line: where it stands, which key, what was expected,
what came.
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

# Keys of further errors that are named.
_NAMED = 5
# What to call the types of pydantic's errors that name Python's own types.
_EXPECTED = {
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "a section of keys",
    "string_type": "text",
}
# Where each key was set: ``--set KEY=VALUE``, or as a keyword.
_Sources = list[tuple[str, str]]

T = TypeVar("T", bound=Settings)


def load_config(
    model: type[T],
    path: Path | None = None,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
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
    settings
        Values by ``"key.sub"``, or sections of them, applied last:
        ``{"budget.minutes": 2, "box": {"spacing": 50}}``.

    Raises
    ------
    InputError
        In one line: which file, ``--set`` or setting, which key, what was expected,
        what came.
    """
    tree = {} if path is None else _read(path)
    sources: _Sources = []
    for text in overrides:
        key, equals, value = text.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", n) for n in names):
            raise InputError(f"--set {text}: expected KEY=VALUE or SECTION.KEY=VALUE")
        sources.append((".".join(names), f"--set {text}"))
        _put(tree, *sources[-1], _parse(value.strip(), text))
    for key, value in _flat(settings or {}):
        sources.append((key, "settings"))
        _put(tree, *sources[-1], value)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        message = _explain(model, error, path, sources)
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


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", v) for inner, v in _flat(value))
        else:
            yield key, value


def _put(tree: dict[str, Any], key: str, source: str, value: Any) -> None:
    """Put one value into ``tree``, making sections on the way."""
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
    hint = ""
    if "," in value and "[" not in value:
        key = text.partition("=")[0].strip()
        hint = f"; a list stands in brackets: --set '{key}=[{value}]'"
    raise InputError(
        f"--set {text}: {value!r} is neither a TOML value (number, true, false, "
        f'"text", [list]) nor one word{hint}'
    )


def _explain(
    model: type[Settings], error: ValidationError, path: Path | None, sources: _Sources
) -> str:
    """Return ``source: key: expected ..., got ...`` for the first error.

    The keys of further errors follow, so that nobody expects one mended key to be
    enough.
    """
    details = error.errors(include_url=False)
    # An unknown key explains more than what its absence caused elsewhere.
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    key, *others = dict.fromkeys(_dotted(detail) for detail in details)
    # What set the key last, or everything that could have set keys inside it.
    own = [s for k, s in sources if key == k or key.startswith((f"{k}.", f"{k}["))]
    inside = [s for k, s in sources if not key or k.startswith(f"{key}.")]
    file = [] if path is None else [str(path)]
    source = own[-1] if own else " ".join(dict.fromkeys([*file, *inside]))
    words = (source, key, _describe(model, details[0]))
    message = ": ".join(word for word in words if word)
    if not others:
        return message
    rest = ", ..." if len(others) > _NAMED else ""
    return f"{message} (wrong too: {', '.join(others[:_NAMED])}{rest})"


def _dotted(detail: ErrorDetails) -> str:
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in detail["loc"])
    return "".join(parts).removeprefix(".")


def _describe(model: type[Settings], detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return "unknown key" + _suggest(model, detail["loc"])
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    expected = _EXPECTED.get(kind) or detail["msg"].removeprefix("Input should be ")
    if expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    shown, near = repr(value), ""
    if isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, tuple):
        shown = str(list(value))
    elif isinstance(value, dict):
        shown = "a section"
    elif kind == "literal_error" and isinstance(value, str):
        choices = detail.get("ctx", {})["expected"].replace(" or ", ", ").split(", ")
        match = difflib.get_close_matches(repr(value.lower()), choices, n=1)
        near = f" (did you mean {match[0]}?)" if match else ""
    return f"expected {expected}, got {shown}{near}"


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
