"""Configurations as TOML, and as a help text that is TOML too."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pipelines.config.base import AUTO, Settings


def to_toml(config: Settings) -> str:
    """Return ``config`` as TOML that loads to the same; absent values are left out."""
    blocks = []
    for section, settings in _sections(config):
        lines = [] if section is None else [f"[{section}]"]
        lines += [
            f"{name} = {literal(value)}"
            for name, value in settings
            if not (value is None or isinstance(value, Settings))
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block) + "\n"


def describe(model: type[Settings]) -> str:
    """Return every key with its meaning, choices and default.

    The text is itself a configuration file, which loads to the defaults.
    """
    blocks = []
    for section, settings in _sections(model()):
        purpose = inspect.getdoc(type(settings)) or ""
        lines = [_comment(purpose.split("\n\n")[0])]
        if section is not None:
            lines.append(f"[{section}]")
        for name, value in settings:
            if not isinstance(value, Settings):
                info = type(settings).model_fields[name]
                default = AUTO if value is None else value
                lines += [_comment(_meaning(info)), f"{name} = {literal(default)}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _sections(config: Settings) -> Iterator[tuple[str | None, Settings]]:
    """Yield the keys of no section, then each section by name."""
    yield None, config
    for name, value in config:
        if isinstance(value, Settings):
            yield name, value


def literal(value: Any) -> str:
    """A value as TOML has it."""
    # JSON's values are TOML's, but JSON leaves DEL alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return textwrap.fill(text, width=80, initial_indent="# ", subsequent_indent="#   ")


def _meaning(info: FieldInfo) -> str:
    text = info.description or ""
    if get_origin(info.annotation) is Literal:
        text += f": {', '.join(map(repr, get_args(info.annotation)))}"
    limits = [
        f"{sign} {limit:g}"
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
        for item in info.metadata
        if (limit := getattr(item, name, None)) is not None and abs(limit) < 1e15
    ]
    return f"{text} ({', '.join(limits)})" if limits else text
