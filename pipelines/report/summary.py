"""What was mapped, in words and in tables, and all that should worry a reader."""

from __future__ import annotations

import math

import numpy as np

from dustmap.kernels import KERNELS
from pipelines.figures.style import band_of
from pipelines.report.blocks import Block, Notice, Section, Table, Text, facts
from pipelines.report.data import ReportData
from pipelines.report.numbers import by, count, percent, plain, several, significant
from pipelines.run.baseline import in_words, loses
from pipelines.run.folder import Run

# Lines in which a fit says how its solvers ended and what it found.
_STATUS = ("mean: ", "samples: ", "sight lines ", "residual: along rays")
_DENSITIES = {
    "lognormal": "a log-normal density, which is positive",
    "gaussian": "a Gaussian density, which may be negative where little is known",
}


def summary(data: ReportData) -> Section:
    """What was mapped, in a paragraph and tables, and what the fit said."""
    run, warnings = data.run, warnings_of(data)
    counts = [(name, count(number)) for name, number in run.summary["counts"].items()]
    blocks: list[Block] = [
        Text((_in_words(data),)),
        facts("The map", _map_rows(data)),
        facts("Stars", counts),
        _learnt_table(run),
        *_spectrum(run),
    ]
    every = (*run.summary.get("messages", ()), *run.plan.notes)
    if said := tuple(line for line in every if line not in warnings):
        blocks.append(Notice(title="Messages of the fit", lines=said, loud=False))
    title = "What was mapped"
    return Section(key="summary", title=title, blocks=tuple(blocks), folded=True)


def warnings_of(data: ReportData) -> list[str]:
    """All that should worry a reader."""
    return [*fit_warnings(data.run), *judged_warnings(data), *_unstated(data)]


def _unstated(data: ReportData) -> list[str]:
    """What the catalogue does not say, and the map goes without."""
    found = []
    if not band_of(data.origin):
        found.append(
            "The band of the extinction is not known (dustmap ingest --declare-band "
            "A_V): the map cannot be converted, nor compared with others."
        )
    if data.exact_distances:
        found.append(
            "The catalogue gives no distance errors: distances were taken as exact."
        )
    return found


def fit_warnings(run: Run) -> list[str]:
    """What the fit itself found wanting."""
    found = []
    converged = run.summary["converged"]
    learning = run.summary.get("learning") or {}
    if not learning.get("converged", True):
        fit = "The fit converged, with" if converged else "The fit has"
        found.append(
            f"{fit} the prior's scales as far as they were learnt: that stopped before "
            f"its end ({learning.get('status', 'no reason is recorded')}). Lengthscale "
            "and amplitude are the best found until then; a fit with prior.lengthscale "
            "and prior.std given tells how much they matter."
        )
    if converged and run.plan.is_full_batch:
        said = run.summary.get("messages", ())
        found += [line for line in said if not line.startswith(_STATUS)]
    found += [
        f"The fit was resumed at {entry.get('time')} although something had "
        f"changed: {'; '.join(map(str, entry['differences']))}."
        for entry in run.provenance.get("resumed") or []
        if entry.get("differences")
    ]
    if not len(run.posterior.samples):
        found.append("The map has no posterior samples: it states no uncertainty.")
    if dropped := run.summary.get("dropped_modes", 0):
        found.append(
            f"{several(dropped, 'mode')} of the prior's spectrum came out negative and "
            "were set to zero: the prior is not quite the one that was asked for."
        )
    return found


def judged_warnings(data: ReportData) -> list[str]:
    """Warnings from the held-out stars, beside the verdict's reasons."""
    if data.judged is None:
        return [data.unjudged]
    if data.held_out is not None and (score := data.held_out.baseline_score()):
        return [in_words(score)] if loses(score) else []
    return []


def _in_words(data: ReportData) -> str:
    """What the map is; its numbers stand in the tables."""
    run, plan = data.run, data.run.plan
    sides = np.array(plan.grid.upper) - np.array(plan.grid.lower)
    samples = several(len(run.posterior.samples), "posterior sample")
    converged = "converged" if run.summary["converged"] else "did not converge"
    return (
        f"This map is the density of interstellar dust in a box of {by(sides)} pc "
        f"around the Sun, inferred from the extinctions of "
        f"{several(run.summary['counts']['fitted'], 'star')} along their sight lines. "
        f"It is a Gaussian process on a grid, with {_DENSITIES[plan.density]}. The "
        f"engine {plan.engine} gave a mean and {samples}; the fit {converged}."
    )


def _map_rows(data: ReportData) -> list[tuple[str, str]]:
    run, plan = data.run, data.run.plan
    shape = " × ".join(count(n) for n in plan.grid.shape)
    corners = [
        f"{axis}: {plain(low, 6)} to {plain(high, 6)} pc"
        for axis, low, high in zip("xyz", plan.grid.lower, plan.grid.upper, strict=True)
    ]
    return [
        ("box (heliocentric Galactic)", "; ".join(corners)),
        ("grid", f"{shape} = {count(math.prod(plan.grid.shape))} points"),
        ("spacing", f"{by(plan.grid.spacing)} pc"),
        ("cells with a sight line", percent(float((run.support > 0).float().mean()))),
        ("extinction band", data.band),
        ("prior's correlation", KERNELS[plan.kernel].title),
        ("converged", "yes" if run.summary["converged"] else "NO"),
    ]


def _learnt_table(run: Run) -> Table:
    plan = run.plan
    errors = (run.summary.get("learning") or {}).get("errors") or {}
    lognormal = plan.is_lognormal
    height = f"{significant(plan.mean.scale_height)} pc"
    rows = [
        ("lengthscale", "lengthscale", f"{by(plan.lengthscale, 3)} pc"),
        (
            "standard deviation",
            "variance",
            f"{significant(plan.std)} {'of the logarithm' if lognormal else 'mag/pc'}",
        ),
        (
            "median density" if lognormal else "mean density",
            "mean",
            f"{significant(1000 * plan.mean.value)} mag/kpc at the Sun",
        ),
        ("scale height", "scale_height", height if plan.mean.scale_height else "none"),
        ("common noise", "common_noise", f"{significant(plan.common_noise)} mag"),
    ]
    if run.posterior.residual is None:
        share = significant(plan.subgrid_share)
        rows.append(("unresolved share", "subgrid_share", share))
    return Table(
        caption="The prior, and how well the stars constrain it",
        header=("scale", "value", "relative standard error"),
        rows=tuple((name, text, _error(errors, key)) for name, key, text in rows),
    )


def _spectrum(run: Run) -> list[Block]:
    """What the map tells of the power spectrum of ln density."""
    bands = run.summary.get("spectrum")
    if not bands:
        return []
    rows = tuple(
        (
            f"{significant(band['longest'])} to {significant(band['shortest'])} pc",
            f"{band['ratio']:.2f} ± {band['error']:.2f}",
            count(round(band["determined"])),
        )
        for band in bands
    )
    caption = "Power of ln density over the prior's, by wavelength"
    if slope := run.summary.get("spectral_slope"):
        caption += (
            "; below the prior's turn it falls as "
            f"q^({slope['exponent']:.2f} ± {slope['error']:.2f})"
        )
    header = ("wavelengths", "power over the prior's", "numbers that stars determine")
    return [Table(caption=caption, header=header, rows=rows)]


def _error(errors: dict[str, float | None], key: str) -> str:
    if key not in errors:
        return "not learnt"
    error = errors[key]
    if error is None or error > 1:
        return "unconstrained"
    # Of a variance; its root has half the relative error.
    return percent(error / 2 if key == "variance" else error)
