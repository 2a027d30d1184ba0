"""What was mapped, in words and in a table, with all that should worry a reader."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dustmap.kernels import KERNELS
from pipelines.base.calibration import Calibration
from pipelines.report.blocks import Block, Notice, Section, Table, Text, facts
from pipelines.report.data import ReportData
from pipelines.report.numbers import by, count, percent, plain, several, significant
from pipelines.run.folder import Run

# Deviations of a coverage from its level, in binomial errors, and of the mean z.
_TOO_FAR = 4.0
# Lines in which the solvers of a fit say how they ended.
_STATUS = ("mean: ", "samples: ", "sight lines ")


def summary(data: ReportData) -> Section:
    """Warnings first; then a paragraph, and the figures."""
    run = data.run
    warnings = [*fit_warnings(run), *judged_warnings(data)]
    blocks: list[Block] = []
    title = (
        "No warning: the fit converged, and coverages of held-out stars are within "
        f"{_TOO_FAR:.0f} binomial errors of what is stated"
    )
    if warnings:
        title = f"{several(len(warnings), 'warning')}: read before you use the map"
    blocks.append(Notice(title=title, lines=tuple(warnings), loud=bool(warnings)))
    blocks.append(Text(paragraphs=(in_words(data), prediction_in_words(data))))
    blocks += [_map_table(data), _stars_table(run), _learnt_table(run)]
    every = (*run.summary.get("messages", ()), *run.plan.notes)
    said = tuple(line for line in every if line not in warnings)
    if said:
        blocks.append(Notice(title="What the fit said", lines=said, loud=False))
    return Section(key="summary", title="Summary", blocks=tuple(blocks))


def fit_warnings(run: Run) -> list[str]:
    """What the fit itself found wanting."""
    found = []
    facts_ = run.summary
    if not facts_["converged"]:
        found.append(
            "The fit did not converge: its solvers stopped before they were as exact "
            "as asked. Means may be off and uncertainties wrong; see Convergence."
        )
    learning = facts_.get("learning") or {}
    if not learning.get("converged", True):
        fit = "The fit converged, with" if facts_["converged"] else "The fit has"
        found.append(
            f"{fit} the prior's scales as far as they were learnt: that stopped before "
            f"its end ({learning.get('status', 'no reason is recorded')}). Lengthscale "
            "and amplitude are the best found until then; a fit with prior.lengthscale "
            "and prior.std given tells how much they matter."
        )
    if facts_["converged"]:
        found += [m for m in facts_.get("messages", ()) if _warns(m, run)]
    found += [_changed(e) for e in _taken_up(run) if e.get("differences")]
    if not len(run.posterior.samples):
        found.append("The map has no posterior samples: it states no uncertainty.")
    dropped = facts_.get("dropped_modes", 0)
    if dropped:
        found.append(
            f"{several(dropped, 'mode')} of the prior's spectrum came out negative and "
            "were set to zero: the prior is not quite the one that was asked for."
        )
    return found


def _taken_up(run: Run) -> list[dict[str, Any]]:
    return run.provenance.get("taken_up") or []


def _changed(entry: dict[str, Any]) -> str:
    return (
        f"The fit was taken up again at {entry.get('time')} although something had "
        f"changed: {'; '.join(map(str, entry['differences']))}."
    )


def _warns(message: str, run: Run) -> bool:
    return run.plan.engine == "full-batch" and not message.startswith(_STATUS)


def judged_warnings(data: ReportData) -> list[str]:
    """Warnings that follow from the held-out stars."""
    if data.judged is None:
        return [data.unjudged]
    found = []
    judged = data.judged
    for level in judged.coverage:
        if abs(level.held - level.level) > _TOO_FAR * level.error:
            word = "too wide" if level.held > level.level else "too narrow"
            found.append(
                f"The {level.level:.0%} intervals hold {percent(level.held)} of "
                f"{several(judged.stars, 'held-out star')}: they are {word}."
            )
    if abs(judged.z_mean) > _TOO_FAR / math.sqrt(judged.stars):
        side = "more" if judged.z_mean > 0 else "less"
        found.append(
            f"Held-out stars have {side} extinction than predicted, by "
            f"{significant(abs(judged.z_mean), 2)} standard deviations on average."
        )
    return found


def in_words(data: ReportData) -> str:
    """One paragraph: stars, box, grid, band, model, convergence."""
    run, plan = data.run, data.run.plan
    sides = np.array(plan.grid.upper) - np.array(plan.grid.lower)
    density = {
        "lognormal": "a log-normal density, which is positive",
        "gaussian": "a Gaussian density, which may be negative where little is known",
    }[plan.density]
    learnt = "learnt from the stars" if _is_learnt(run) else "as it was set"
    scale = f"{by(plan.lengthscale, 3)} pc"
    if len(set(plan.lengthscale)) > 1:
        scale += " along x, y and z"
    samples = several(len(run.posterior.samples), "posterior sample")
    converged = "converged" if run.summary["converged"] else "did not converge"
    return (
        f"This map is the density of interstellar dust in a box of {by(sides)} pc "
        f"around the Sun, inferred from the extinctions of "
        f"{several(run.summary['counts']['fitted'], 'star')} (band: {data.band}) "
        f"along their sight lines. It is a Gaussian process on a grid of "
        f"{count(math.prod(plan.grid.shape))} points, {by(plan.grid.spacing)} pc "
        f"apart, with {density}. The prior's correlation is "
        f"{KERNELS[plan.kernel].title} with a lengthscale of "
        f"{scale}, {learnt}. The engine {plan.engine} gave a mean and {samples}; the "
        f"fit {converged}."
    )


def prediction_in_words(data: ReportData) -> str:
    """One sentence on the held-out stars."""
    judged = data.judged
    if judged is None:
        return data.unjudged
    text = (
        f"{several(judged.stars, 'star')} were held out. Their measured extinctions "
        f"differ from the predicted ones by {significant(judged.rmse)} mag (root mean "
        "square, measurement noise included)"
    )
    if not judged.coverage:
        return f"{text}."
    held = {round(c.level, 2): c for c in judged.coverage}
    return (
        f"{text}; the 68% intervals hold {percent(held[0.68].held, held[0.68].error)} "
        f"of them, the 95% intervals {percent(held[0.95].held, held[0.95].error)}."
    )


def _is_learnt(run: Run) -> bool:
    learning = run.summary.get("learning") or {}
    return "lengthscale" in (learning.get("errors") or {})


def _map_table(data: ReportData) -> Table:
    run, plan = data.run, data.run.plan
    shape = " × ".join(count(n) for n in plan.grid.shape)
    corners = [
        f"{axis}: {plain(low, 6)} to {plain(high, 6)} pc"
        for axis, low, high in zip("xyz", plan.grid.lower, plan.grid.upper, strict=True)
    ]
    rows = {
        "box (heliocentric Galactic)": "; ".join(corners),
        "grid": f"{shape} = {count(math.prod(plan.grid.shape))} points",
        "spacing": f"{by(plan.grid.spacing)} pc",
        "cells with a sight line": percent(float((run.support > 0).float().mean())),
        "extinction band": data.band,
        "density": plan.density,
        "engine": plan.engine,
        "posterior samples": count(len(run.posterior.samples)),
        "converged": "yes" if run.summary["converged"] else "NO",
    }
    return facts("The map", rows)


def _stars_table(run: Run) -> Table:
    return facts("Stars", [(k, count(n)) for k, n in run.summary["counts"].items()])


def _learnt_table(run: Run) -> Table:
    plan = run.plan
    learning: dict[str, Any] = run.summary.get("learning") or {}
    errors = learning.get("errors") or {}
    lognormal = plan.density == "lognormal"
    axes = by(plan.lengthscale, 3)
    scale = f"{significant(plan.mean.scale_height)} pc"
    std = "of the logarithm" if lognormal else "mag/pc"
    rows = [
        ("lengthscale", "lengthscale", f"{axes} pc"),
        ("standard deviation", "variance", f"{significant(plan.std)} {std}"),
        (
            "median density" if lognormal else "mean density",
            "mean",
            f"{significant(1000 * plan.mean.value)} mag/kpc at the Sun",
        ),
        ("scale height", "scale_height", scale if plan.mean.scale_height else "none"),
        ("common noise", "common_noise", f"{significant(plan.common_noise)} mag"),
        ("unresolved share", "subgrid_share", significant(plan.subgrid_share)),
    ]
    return Table(
        caption="The prior, and how well the stars constrain it",
        header=("scale", "value", "relative standard error"),
        rows=tuple((name, text, _error(errors, key)) for name, key, text in rows),
    )


def _error(errors: dict[str, Any], key: str) -> str:
    if key not in errors:
        return "not learnt"
    error = errors[key]
    if error is None or error > 1:
        return "unconstrained"
    # Of a variance; its root has half the relative error.
    return percent(error / 2 if key == "variance" else error)


def levels(judged: Calibration) -> list[tuple[str, ...]]:
    """Rows of nominal and held fractions."""
    return [
        (
            f"{c.level:.0%}",
            percent(c.held, c.error),
            f"{(c.held - c.level) / c.error:+.1f} σ".replace("-", "\N{MINUS SIGN}"),
        )
        for c in judged.coverage
    ]
