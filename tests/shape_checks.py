"""Checks, on each call, of the shapes that the functions of dustmap declare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

_ROOT = Path(__file__).resolve().parents[1]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def install() -> None:
    """Check dustmap from now on; it must not have been imported yet."""
    install_import_hook(_annotated_modules(), "shape_checks.checked")


def checked(function: _Function) -> _Function:
    """The function with its annotations of arrays checked; pyright has the others."""
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint if _has_shape(hint) else Any for name, hint in hints.items()
    }
    return beartype(function) if any(map(_has_shape, hints.values())) else function


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))


def _annotated_modules() -> list[str]:
    """The modules of dustmap, without those whose functions numba compiles."""
    return [
        ".".join(file.relative_to(_ROOT).with_suffix("").parts)
        for file in sorted((_ROOT / "dustmap").rglob("[!_]*.py"))
        if not (file.name.startswith("compiled_") or "@compiled" in file.read_text())
    ]
