"""The map store of a fit: density, extinctions, samples, prior, and what it loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dustmap
from pipelines.bands import joined_bands
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import KINDS
from pipelines.catalog.provenance import surveys
from pipelines.cubes.sky import ESTIMATE, Curves
from pipelines.formats.citation import citation_block
from pipelines.formats.zarr import write_zarr
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays
from pipelines.run.folder import Run
from pipelines.run.held_out import HeldOut
from pipelines.run.verdict import verdict
from pipelines.store.curves import extinction_curves
from pipelines.store.density import density_levels
from pipelines.store.matching import matched

# Largest RMSE of held-out stars over that of exact predictions, with which pixels are
# fine enough.
_MOST = 1.01


def write_store(run: Run, held_out: HeldOut | None, path: Path) -> None:
    """Write the map of a fit as a zarr store.

    Its provenance has the verdict on the store's own predictions of held-out stars, and
    their errors beside those of exact predictions.
    """

    def loses(curves: Curves) -> bool:
        """Return true if the RMSE of held-out stars is above the exact one."""
        rmse = _judged(run, held_out, curves).get("held_out", {}).get("rmse")
        return rmse is not None and rmse["store"] > _MOST * rmse["exact"]

    levels = density_levels(run)
    curves = extinction_curves(run, levels, loses)
    if run.posterior.model.positive and len(run.posterior.samples):
        levels = matched(levels, curves)
    coarsest, *finer = (level.cube for level in levels)
    stack = None if run.posterior.residual is None else run.posterior.residual.stack
    curves.meta[ESTIMATE] = "map" if stack is None else "kriged"
    meta = {**provenance(run), **_judged(run, held_out, curves)}
    write_zarr(
        path,
        replace(coarsest, finer=tuple(finer), meta=meta),
        curves,
        columns=[level.columns for level in levels],
        samples=[level.samples for level in levels],
    )


def provenance(run: Run) -> dict[str, Any]:
    """Return the origin of a run's map, with citations, and its prior."""
    held = surveys(run.provenance.get("catalogue") or {})
    catalogues = [one for one in held if one["name"]]
    band = joined_bands([one["band"] for one in held])
    inputs = run.provenance["inputs"]
    try:
        prior = run.plan.build_prior().as_dict()
    except InputError:
        prior = None
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "fit": run.provenance["fit"],
        "prior": prior,
        "stars": run.summary.get("counts", {}),
        "configuration": run.provenance["configuration"],
        "inputs": inputs,
        "catalogues": catalogues,
        "extinction_band": band,
        "verdict": str(run.verdict),
        # Of densities and their integrals.
        ESTIMATE: "map",
        "citation": citation_block(catalogues, band, inputs),
    }


def _judged(run: Run, held_out: HeldOut | None, curves: Curves) -> dict[str, Any]:
    """Return the verdict on curves, and their errors for held-out stars."""
    exact = run.summary.get("held_out", {})
    if held_out is None or not exact:
        return {}
    stars = Places.along(
        unit_vectors(held_out.l, held_out.b), held_out.distance[:, None]
    )
    rays = PixelRays.of(curves, run.box)
    known = [kind for kind in KINDS if kind in curves.arrays]
    predicted = rays.at(known, stars)
    law = None if run.posterior.residual is None else run.posterior.residual.law
    unknown = np.full(len(held_out), np.nan)
    predicted = {kind: predicted.get(kind, unknown) for kind in KINDS}
    score = held_out.by(predicted, law).score(positive=run.plan.is_lognormal)
    names = [n for n in ("rmse", "coverage_68", "coverage_95") if n in score]
    return {
        "verdict": str(verdict(run.summary["converged"], score)),
        "held_out": {
            name: {"store": score[name], "exact": exact.get(name)} for name in names
        },
    }
