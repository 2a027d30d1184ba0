"""Configurations as TOML, and their help text, also in TOML."""

from __future__ import annotations

import inspect
import json
import textwrap
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pipelines.config.base import AUTO, Settings


def to_toml(config: Settings) -> str:
    """Return ``config`` as equivalent TOML; absent values are omitted."""
    return _written(config, explained=False)


def describe(model: type[Settings]) -> str:
    """Return every key with its meaning, choices and default.

    The text is a configuration file of the defaults.
    """
    return _written(model(), explained=True)


def _written(config: Settings, *, explained: bool) -> str:
    blocks = []
    sections = [(name, each) for name, each in config if isinstance(each, Settings)]
    for section, settings in [("", config), *sections]:
        purpose = (inspect.getdoc(type(settings)) or "").split("\n\n")[0]
        lines = [_comment(purpose)] if explained else []
        lines += [f"[{section}]"] if section else []
        for name, value in settings:
            if isinstance(value, Settings) or (value is None and not explained):
                continue
            if explained:
                lines.append(_comment(_meaning(type(settings).model_fields[name])))
            lines.append(f"{name} = {literal(AUTO if value is None else value)}")
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def literal(value: Any) -> str:
    """Return a value in TOML."""
    # JSON's values are valid TOML, except an unescaped DEL.
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
