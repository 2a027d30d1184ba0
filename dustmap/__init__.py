"""Three-dimensional maps of interstellar dust, with uncertainty, from stars.

>>> import dustmap                                                # doctest: +SKIP
>>> dust = dustmap.fit(coords, a_v, a_v_error, output="run")      # doctest: +SKIP
>>> dust.query(coords, integrated=True)                           # doctest: +SKIP

What is named here loads :mod:`pipelines` (files, units, figures) when it is first used.
The modules of this package are the mathematics: tensors in, tensors out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.api import (
        Beam,
        DustMap,
        fill,
        fit,
        ingest,
        open_map,
        predict,
        regress,
        simulate,
    )

__version__ = "0.1.0"
__all__ = [
    "Beam",
    "DustMap",
    "fill",
    "fit",
    "ingest",
    "open_map",
    "predict",
    "regress",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("pipelines.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
