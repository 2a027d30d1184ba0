"""Extinction and density at the places of stars."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dustmap.functionals import PointValues, Stack
from dustmap.memory import rows_within
from dustmap.posterior import Posterior
from dustmap.residual.stacking import StackedKriging
from pipelines.base.quantiles import KINDS, summaries
from pipelines.catalog.schema import CANONICAL_UNITS, Stars, write_table
from pipelines.formats.citation import PROGRAM
from pipelines.model.engine import rays
from pipelines.model.plan import Plan
from pipelines.run.held_out import Columns

UNITS = {
    **{f"extinction_{kind}": "mag" for kind in KINDS},
    **{f"density_{kind}": "mag/pc" for kind in KINDS},
    **CANONICAL_UNITS,
    "noise": "mag",
    "posterior_distance": "pc",
    "posterior_distance_std": "pc",
    **{f"measured_{kind}": "mag" for kind in KINDS},
    "kriging": "mag",
    "kriging_std": "mag",
}


class Located(Protocol):
    """Stars, or other places: ``positions`` are ``x, y, z`` [pc], ``(n, 3)``."""

    def __len__(self) -> int: ...
    def positions(self) -> np.ndarray: ...


def predict_columns(plan: Plan, posterior: Posterior, at: Located) -> Columns:
    """Predict noise-free extinction [mag] and density [mag/pc] at places, in order.

    Columns are mean, std and p2_5 to p97_5. Places outside the box get NaN and
    ``inside = False``. Standard deviations include the unresolved part. If the residual
    has a stack, the extinctions are those of the stack.
    """
    positions = torch.as_tensor(at.positions())
    inside = plan.grid.contains(positions)
    where = inside.numpy()
    columns = {
        f"{quantity}_{kind}": np.full(len(at), np.nan)
        for quantity in ("extinction", "density")
        for kind in KINDS
    }
    ends = positions[inside]
    if len(ends):
        # Both in one call: they share the neighbours of a place, and the draws of the
        # sub-grid variance. Weights and samples of a star take two kilobytes.
        rows = rows_within(2048)
        for own, some in zip(inside.nonzero()[:, 0].split(rows), ends.split(rows)):
            both = Stack([rays(plan, some, outwards=True), PointValues(some)])
            moments = posterior.moments(both, rows=len(both))
            for name, part in summaries(moments, quantiles=True).items():
                integrals, values = part.reshape(2, -1)
                # Not by the tensor: NumPy takes one of a single number for a number.
                columns[f"extinction_{name}"][own.numpy()] = integrals
                columns[f"density_{name}"][own.numpy()] = values
    if posterior.stack is not None:
        columns |= stacked(columns, posterior.stack, positions)
    return {**columns, "inside": where}


def stacked(
    columns: Columns, stack: StackedKriging, positions: torch.Tensor
) -> Columns:
    """Return the extinctions of a stack from the map's; NaN stays NaN."""
    mean, std = columns["extinction_mean"], columns["extinction_std"]
    some = np.isfinite(mean)
    factor = np.full(len(some), np.nan)
    factor[some] = stack.factor(positions[some], mean[some], std[some])
    return {n: v * factor for n, v in columns.items() if n.startswith("extinction_")}


def write_predictions(
    path: Path, stars: Stars, predictions: Columns, *, overwrite: bool = False
) -> None:
    """Write one row per star in the same order, with its identifiers."""
    own, names = stars.columns(), ("source_id", "survey", "l", "b", "distance")
    columns = {name: own[name] for name in names if name in own} | predictions
    units = {name: unit for name, unit in UNITS.items() if name in columns}
    write_table(path, columns, units=units, meta=PROGRAM, overwrite=overwrite)
