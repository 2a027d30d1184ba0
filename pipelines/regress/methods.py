"""Which method suits a table, and the way to it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.regress.dense import MOST_EXACT, fit_exact, fit_sgpr
from pipelines.regress.fitted import FittedModel
from pipelines.regress.options import Options
from pipelines.regress.torus import fit_torus
from pipelines.regress.variational import fit_variational

# So many rows are always solved exactly; a grid has so many axes at most.
_EXACT_ROWS, _AXES = 2_000, 3


def choose_method(options: Options, rows: int, axes: int) -> tuple[str, str]:
    """The method and why, for so many rows to fit and inputs.

    Raises
    ------
    InputError
        If a method was asked for that cannot have so many inputs.
    """
    if options.method != "auto":
        if options.method == "hip" and axes > _AXES:
            raise InputError(
                f"--method hip works on a grid of one to three inputs, here are "
                f"{axes}: choose some with --inputs, or another method"
            )
        return options.method, "as asked for"
    if options.noise.classes:
        return "svgp", "classes"
    if options.whitening != "cholesky":
        return "svgp", f"whitening {options.whitening}"
    if options.noise.conjugate and rows <= _EXACT_ROWS:
        return "exact", f"no more than {_EXACT_ROWS:,} rows"
    if axes > _AXES and options.noise.conjugate and rows <= MOST_EXACT:
        return "exact", f"{axes} inputs, too many for a grid, no more than 8,000 rows"
    if axes <= _AXES:
        return "hip", f"{axes} input{'s' * (axes > 1)}"
    return "svgp", f"{axes} inputs, too many for a grid"


def fit(
    method: str,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    everywhere: Float[Tensor, "m d"],
    options: Options,
    generator: torch.Generator,
) -> FittedModel:
    """Fit standardised rows by a method; all of ``everywhere`` can be asked for."""
    if method == "exact":
        return fit_exact(x, y, generator)
    if method == "sgpr":
        return fit_sgpr(x, y, generator)
    if method == "hip":
        return fit_torus(x, y, everywhere, options.noise, generator)
    return fit_variational(x, y, options.noise, options.whitening, generator)
