"""Three-dimensional maps of interstellar dust, with uncertainty, from stars.

>>> import dustmap                                                # doctest: +SKIP
>>> dust = dustmap.fit(coords, a_v, a_v_error, output="run")      # doctest: +SKIP
>>> dust.query(coords, integrated=True)                           # doctest: +SKIP

These names load :mod:`pipelines` (files, units, figures) on first use. The modules of
this package contain the mathematics, from tensors to tensors; their main names are
available here as well:

>>> dustmap.Grid(shape=(9, 9), spacing=(1, 1), origin=(0, 0))     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dustmap.functionals import LineIntegrals, PointValues
    from dustmap.grid import Grid
    from dustmap.inference.full_batch import FullBatch, infer
    from dustmap.kernels import Matern12, Matern32, Matern52, SquaredExponential
    from dustmap.models.gaussian import TorusGaussian
    from dustmap.models.lognormal import LogNormal
    from dustmap.nested_grids import NestedGrids
    from dustmap.noise import Normal, StudentT
    from dustmap.posterior import Posterior
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
    "FullBatch",
    "Grid",
    "LineIntegrals",
    "LogNormal",
    "Matern12",
    "Matern32",
    "Matern52",
    "NestedGrids",
    "Normal",
    "PointValues",
    "Posterior",
    "SquaredExponential",
    "StudentT",
    "TorusGaussian",
    "fill",
    "fit",
    "infer",
    "ingest",
    "open_map",
    "predict",
    "regress",
    "simulate",
]
# Modules of the mathematics, by the names that they define.
_HOMES = {
    "FullBatch": "dustmap.inference.full_batch",
    "Grid": "dustmap.grid",
    "LineIntegrals": "dustmap.functionals",
    "LogNormal": "dustmap.models.lognormal",
    "Matern12": "dustmap.kernels",
    "Matern32": "dustmap.kernels",
    "Matern52": "dustmap.kernels",
    "NestedGrids": "dustmap.nested_grids",
    "Normal": "dustmap.noise",
    "PointValues": "dustmap.functionals",
    "Posterior": "dustmap.posterior",
    "SquaredExponential": "dustmap.kernels",
    "StudentT": "dustmap.noise",
    "TorusGaussian": "dustmap.models.gaussian",
    "infer": "dustmap.inference.full_batch",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = _HOMES.get(name, "pipelines.api")
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
