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
    from pipelines.api import DustMap, fit, ingest, open_map, predict, regress, simulate

__version__ = "0.1.0"
__all__ = [
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
    "fit",
    "infer",
    "ingest",
    "open_map",
    "predict",
    "regress",
    "simulate",
]
# Names of the mathematics, by the modules that define them.
_HOMES = {
    "dustmap.functionals": ("LineIntegrals", "PointValues"),
    "dustmap.grid": ("Grid",),
    "dustmap.inference.full_batch": ("FullBatch", "infer"),
    "dustmap.kernels": ("Matern12", "Matern32", "Matern52", "SquaredExponential"),
    "dustmap.models.gaussian": ("TorusGaussian",),
    "dustmap.models.lognormal": ("LogNormal",),
    "dustmap.nested_grids": ("NestedGrids",),
    "dustmap.noise": ("Normal", "StudentT"),
    "dustmap.posterior": ("Posterior",),
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        homes = (home for home, names in _HOMES.items() if name in names)
        return getattr(importlib.import_module(next(homes, "pipelines.api")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
