"""Scales of the prior revised by a map: the power of the density at each wavelength.

Some thousand stars tell a lengthscale to a factor of 1.5, and a map of all of them
better. Where the map's power is far from the prior's, there is another first map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dustmap.inference.scales.band_power import BandPower, fitted_scales
from dustmap.whitening import nested_tori
from pipelines.config import FitConfig
from pipelines.model.plan import Plan
from pipelines.planning.learning import (
    ChooseGrid,
    chosen_grids,
    open_names,
    resolved,
    resolved_std,
)

# Gain of the evidence [nats] and change of a scale that are worth a map: with 97 nats
# and a change by 1.2 errors of extinctions stayed.
_WORTH, _CHANGE = 40.0, 1.4
# Maps that are made at most.
_MOST = 2
# Standard errors of learnt logarithms, at most.
_LOOSE = 1.0


def revised_plan(
    plan: Plan,
    bands: Sequence[BandPower],
    learning: Mapping[str, Any] | None,
    config: FitConfig,
    choose_grid: ChooseGrid | None,
) -> tuple[Plan, dict[str, Any]] | None:
    """The plan with scales that suit the bands of a first map, and what was learnt.

    None where the scales are given, were revised as often as is worth it, or suit.
    """
    learnt = {"lengthscale", "variance"} <= set(open_names(plan, config))
    kernel = plan.build_kernel()
    if learning is None or not learnt or not bands or kernel.smoothness is None:
        return None
    before = tuple(learning.get("revisions", ()))
    known = learning.get("errors", {})
    length, variance = (
        min(known.get(name) or _LOOSE, _LOOSE) for name in ("lengthscale", "variance")
    )
    # The variance's logarithm is twice that of the std.
    lengthscale, std, gain = fitted_scales(kernel, bands, (length, variance / 2))
    change = max(abs(math.log(lengthscale)), abs(math.log(std)))
    if gain < _WORTH or change < math.log(_CHANGE) or len(before) == _MOST:
        return None
    found = _rescaled(plan, lengthscale, std, config, choose_grid)
    once = {
        "gain": gain,
        "lengthscale": list(plan.lengthscale),
        "std": plan.std,
    }
    return found, {**learning, "revisions": [*before, once]}


def _rescaled(
    plan: Plan,
    stretch: float,
    factor: float,
    config: FitConfig,
    choose_grid: ChooseGrid | None,
) -> Plan:
    """The plan with these factors on its lengthscale and std, and its mean density."""
    wanted, std = [stretch * scale for scale in plan.lengthscale], factor * plan.std
    grids = plan.grids
    if choose_grid is not None:
        grids = chosen_grids(plan, wanted, std, choose_grid)
    on_grid = replace(plan, grid=grids[0])
    lengthscale, notes = resolved(wanted, on_grid)
    std = resolved_std(std, wanted, lengthscale, on_grid)
    median = plan.mean.value
    if plan.is_lognormal:
        median *= math.exp((plan.std**2 - std**2) / 2)
    changed = replace(
        on_grid,
        lengthscale=lengthscale,
        std=std,
        mean=replace(plan.mean, value=median),
        notes=(*plan.notes, *notes),
    )
    kernel, tolerance = changed.build_kernel(), config.model.wrap_tolerance
    return changed.on(nested_tori(grids, kernel, tolerance))
