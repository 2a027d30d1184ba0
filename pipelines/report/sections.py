"""Sections of a report: verdict, maps, held-out stars, the fit and its provenance."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from pipelines.bands import known_band
from pipelines.base.calibration import Calibration, by_bins, even_edges
from pipelines.figures.held_out import held_out_figure
from pipelines.figures.registry import PlotOptions, draw
from pipelines.formats.citation import cited_papers
from pipelines.report.blocks import (
    Block,
    Listing,
    Notice,
    Picture,
    Table,
    by,
    count,
    duration,
    percent,
    picture,
    plain,
    several,
    significant,
    size,
)
from pipelines.report.data import UNJUDGED, ReportData
from pipelines.run.baseline import NAME, in_words, loses
from pipelines.run.folder import Run
from pipelines.run.held_out import HeldOut
from pipelines.run.verdict import Grade
from pipelines.storage.metrics import Record

# Bins of held-out stars, and the fewest stars in one for a meaningful coverage.
_BINS, _FEWEST = 6, 25
# Beginnings of a fit's messages about solvers and results.
_STATUS = ("mean: ", "samples: ", "sight lines ", "residual: ")
_DENSITIES = {
    "lognormal": "a log-normal density, which is positive",
    "gaussian": "a Gaussian density, which may be negative where little is known",
}
_PARTS = {
    "read": "reading the catalogue",
    "scales": "learning the prior's scales",
    "held-out test": "sight lines and held-out stars",
}
# Values in a record of a solve, of the stars, of a step and of the evidence.
_NUMBERS = ("residual", "misfit", "expected_gain", "bound")
# Descriptions and captions of figures of `dustmap plot`.
_FIGURES = {
    "face-on": (
        "Map of the extinction through the box seen from the north Galactic pole, the "
        "Sun at the origin",
        "Face-on: mean extinction through the whole box along z, and its standard "
        "deviation.",
    ),
    "sky": (
        "Extinction over the whole sky in Galactic coordinates",
        "The sky: extinction from the Sun to a distance, Galactic coordinates, l = 0° "
        "in the middle and growing to the left.",
    ),
    "near": (
        "Map of the extinction through a finer grid around the Sun, seen from the "
        "north Galactic pole",
        "Near the Sun: mean extinction through a finer grid alone, between the heights "
        "that the picture names, and its standard deviation.",
    ),
    "edge-on": (
        "Map of the extinction through the box seen along y, the Galactic plane "
        "horizontal",
        "Edge-on: mean extinction along y, between the ends that the picture names, "
        "and its standard deviation.",
    ),
    "slice": (
        "Mean density in the plane of the Sun",
        "The mean density in the plane nearest z = 0: along a line it adds up to the "
        "extinction.",
    ),
    "los": (
        "Extinction against distance with its uncertainty",
        "Extinction to a distance along directions of much dust, its 68% and 95% "
        "bands, and the stars near by. Where the last star stands, the map begins to "
        "extrapolate.",
    ),
}


def overview(data: ReportData) -> list[Block]:
    """Write the first screen: verdict, warnings, errors, face-on and sky map."""
    judged, warnings = data.run.verdict, warnings_of(data)
    loud = bool(warnings) or judged.grade != Grade.USABLE
    blocks: list[Block] = [Notice(str(judged), warnings, loud)]
    if score := data.run.summary.get("held_out", {}):
        beside = [score["rmse_kriging"]] if "rmse_kriging" in score else []
        errors = (f"{significant(error)} mag" for error in (score["rmse"], *beside))
        rows = [("error of held-out extinctions (RMSE)", *errors)]
        rows += [
            (f"stars {where} intervals", percent(score[key]), *("" for _ in beside))
            for where, key in (
                *(("in 68%", "coverage_68"), ("in 95%", "coverage_95")),
                *(("above 95%", "above_p97_5"), ("below 95%", "below_p2_5")),
            )
            if key in score
        ]
        header = ("", "this map", *(f"no map: {NAME}" for _ in beside))
        blocks.append(Table(f"{score['stars']:.0f} held-out stars", rows, header))
    return [*blocks, drawn(data, "face-on"), drawn(data, "sky")]


def drawn(data: ReportData, kind: str) -> Picture:
    """Draw a figure as `dustmap plot`, with its panels' titles in the description."""
    figure = draw(data.source, kind, PlotOptions(nside=data.nside))
    alt, caption = _FIGURES[kind]
    titles = dict.fromkeys(axes.get_title() for axes in figure.axes)
    if named := "; ".join(filter(None, titles)):
        alt = f"{alt}: {named}".replace("$", "").replace("\n", " ")
    return picture(figure, alt, caption)


def maps(data: ReportData) -> list[Block]:
    """Draw the neighbourhood of the Sun, the box edge-on, and a slice."""
    cube = data.source.cube()
    seen = percent(float((cube.arrays["support"] > 0).mean()))
    text = (
        "The Sun is at the origin; x points to the Galactic centre (l = 0°), y to "
        f"l = 90°, z to the north Galactic pole. {seen} of the cells are crossed "
        "by the sight line of some star. In the others the map is its prior."
    )
    kinds = (*(["near"] if cube.finer else []), "edge-on", "slice")
    return [text, *(drawn(data, kind) for kind in kinds)]


def warnings_of(data: ReportData) -> list[str]:
    """Collect the warnings of the fit, of the held-out stars and of the catalogue."""
    found = [*fit_warnings(data.run), *judged_warnings(data)]
    if not known_band(str(data.origin.get("extinction_band", ""))):
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
    """Collect the warnings of the fit itself."""
    found = []
    converged = run.summary["converged"]
    learning = run.summary.get("learning") or {}
    if not learning.get("converged", True):
        fit = "The fit converged, with" if converged else "The fit has"
        found.append(
            f"{fit} the prior's scales as far as they were learnt: that stopped before "
            f"its end ({learning.get('status', 'no reason is recorded')}). Lengthscale "
            "and amplitude are the best found until then; a fit with prior.lengthscale "
            "and prior.std given shows how much they matter."
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
            "were set to zero: the prior is not quite the one that was chosen."
        )
    return found


def judged_warnings(data: ReportData) -> list[str]:
    """Collect warnings from the held-out stars, beside the verdict's reasons."""
    if data.held_out is None:
        return [UNJUDGED]
    score = data.held_out.baseline_score()
    return [in_words(score)] if score and loses(score) else []


def validation(data: ReportData) -> list[Block]:
    """Write errors, z-scores and coverage of the held-out stars, also by bins."""
    stars, judged, z = data.held_out, data.judged, data.z
    if stars is None or judged is None:
        return [UNJUDGED]
    kind = "the measurement's error and the prediction as normal"
    if stars.z is not None:
        kind = (
            "the measurement as a Student-T about the prediction, with width and tails "
            "learnt from other stars that were not fitted"
        )
    elif data.run.plan.is_lognormal:
        kind = (
            "the measurement's error as normal, and the prediction as the distribution "
            "between the posterior's five quantiles"
        )
    robust = "robust scatter (1.4826 × median absolute deviation)"
    rows = [
        ("stars", count(judged.stars)),
        ("root mean square", f"{significant(judged.rmse)} mag"),
        (robust, f"{significant(judged.scatter)} mag"),
        ("mean", f"{significant(judged.bias)} mag"),
    ]
    if judged.coverage:
        rows += [
            ("mean of z", significant(judged.z_mean, 2)),
            ("standard deviation of z", significant(judged.z_std)),
            ("mean of z² (reduced χ²)", significant(judged.chi2)),
        ]
    blocks: list[Block] = [
        "These stars took no part in the fit. The map predicts the extinction of each "
        "from its position; what was measured differs from that by the map's error and "
        "the measurement's. The latter is the catalogue's error, the common noise, and "
        "what an error of the distance makes of the dust at the star.",
        f"z-scores take {kind}. If that is right, they are standard normal and "
        "intervals hold what they say. Errors of coverages are binomial, for "
        "independent stars: stars behind one cloud are not, so that they are the least "
        "that is possible.",
        Table("Measured minus predicted extinction", rows),
    ]
    if score := stars.baseline_score():
        blocks.append(f"{in_words(score)}.")
    return blocks if z is None else [*blocks, *_coverage(stars, judged, z)]


def _coverage(stars: HeldOut, judged: Calibration, z: np.ndarray) -> list[Block]:
    """Tabulate stars inside central intervals and errors by bins, and draw them."""
    rows = []
    for c in judged.coverage:
        deviation = f"{(c.held - c.level) / c.error:+.1f} σ"
        deviation = deviation.replace("-", "\N{MINUS SIGN}")
        rows.append((f"{c.level:.0%}", percent(c.held, c.error), deviation))
    blocks: list[Block] = [
        Table("Stars inside central intervals", rows, ("stated", "held", "deviation"))
    ]
    number = min(_BINS, max(1, len(z) // _FEWEST))
    binned = {}
    for name, value in stars.quantities().items():
        found = by_bins(value, even_edges(value, number), stars.residual, z)
        binned[name] = found
        levels = [f"in {c.level:.0%}" for c in found[0].calibration.coverage]
        header = (name, "stars", "mean [mag]", "RMSE [mag]", "std of z")
        rows = [
            (
                f"{significant(one.low)}–{significant(one.high)}",
                count(one.calibration.stars),
                significant(one.calibration.bias, 2),
                significant(one.calibration.rmse),
                significant(one.calibration.z_std),
                *(percent(c.held, c.error) for c in one.calibration.coverage),
            )
            for one in found
        ]
        caption = f"By {name.partition(' [')[0]}"
        blocks.append(Table(caption, rows, (*header, *levels)))
    held = ", ".join(f"{percent(c.held)} in {c.level:.0%}" for c in judged.coverage)
    drawn = picture(
        held_out_figure(stars, z, judged, binned),
        f"Predictions of {len(stars)} held-out stars: measured against predicted "
        f"extinction, z-scores beside a standard normal (mean "
        f"{significant(judged.z_mean, 2)}, standard deviation "
        f"{significant(judged.z_std)}), coverage ({held}), and errors by "
        f"{', '.join(binned)}",
        "Measured against predicted extinction, with the measurement's standard "
        "errors; z-scores and a standard normal; stars inside central intervals "
        "against what is stated; errors by what they may depend on.",
    )
    return [*blocks, drawn]


def limits(data: ReportData) -> list[Block]:
    """Write the limits of the map."""
    plan = data.run.plan
    cell = plain(max(plan.grid.spacing))
    length = significant(min(plan.lengthscale))
    return [
        "Where no star's sight line passes (support is zero) the map is the prior: its "
        "mean is not a measurement, and its standard deviation is the prior's.",
        "Behind the last star of a direction extinctions are extrapolated: dust there "
        "is the prior's, whatever the map shows.",
        f"Nothing smaller than a grid step of {cell} pc is resolved; clouds much "
        f"smaller than the lengthscale of {length} pc are smeared out along the sight "
        "line, where distances decide, more than across.",
        "Elongated features that point at the Sun are where errors of distances and "
        "gaps between stars go first; do not take them for filaments.",
        "Intervals are those of the model. Errors that the catalogue understates, and "
        "stars it selects by their extinction, are not in them.",
    ]


def summary(data: ReportData) -> list[Block]:
    """Write a paragraph and tables about the map, and the messages of the fit."""
    run, plan, warnings = data.run, data.run.plan, warnings_of(data)
    grid, converged = plan.grid, run.summary["converged"]
    text = (
        f"This map is the density of interstellar dust in a box of "
        f"{by(np.array(grid.upper) - np.array(grid.lower))} pc "
        f"around the Sun, inferred from the extinctions of "
        f"{several(run.summary['counts']['fitted'], 'star')} along their sight lines. "
        f"It is a Gaussian process on a grid, with {_DENSITIES[plan.density]}. The "
        f"engine {plan.engine} gave a mean and "
        f"{several(len(run.posterior.samples), 'posterior sample')}; the fit "
        f"{'converged' if converged else 'did not converge'}."
    )
    shape = " × ".join(count(n) for n in grid.shape)
    corners = (
        f"{axis}: {plain(low, 6)} to {plain(high, 6)} pc"
        for axis, low, high in zip("xyz", grid.lower, grid.upper, strict=True)
    )
    rows = [
        ("box (heliocentric Galactic)", "; ".join(corners)),
        ("grid", f"{shape} = {count(math.prod(grid.shape))} points"),
        ("spacing", f"{by(grid.spacing)} pc"),
        ("cells with a sight line", percent(float((run.support > 0).float().mean()))),
        (
            "extinction band",
            str(data.origin.get("extinction_band") or "as in the catalogue"),
        ),
        ("prior's correlation", plan.build_kernel().title),
        ("converged", "yes" if converged else "NO"),
    ]
    counts = [(name, count(number)) for name, number in run.summary["counts"].items()]
    blocks = [text, Table("The map", rows), Table("Stars", counts), _learnt(run)]
    if laws := run.summary.get("surveys"):
        blocks.append(_surveys(laws))
    if bands := run.summary.get("spectrum"):
        caption = "Power of ln density over the first prior's, with statistical errors"
        powers = [
            (
                f"{significant(band['longest'])} to {significant(band['shortest'])} pc",
                f"{band['ratio']:.2f} ± {band['error']:.2f}",
                count(round(band["determined"])),
            )
            for band in bands
        ]
        last = "numbers that stars determine"
        header = ("wavelengths", "power over the prior's", last)
        blocks.append(Table(caption, powers, header))
    every = (*run.summary.get("messages", ()), *run.plan.notes)
    if said := [line for line in every if line not in warnings]:
        blocks.append(Notice("Messages of the fit", said, loud=False))
    return blocks


def _surveys(laws: list[dict[str, Any]]) -> Table:
    """Tabulate zero points, slopes and errors of the surveys."""

    def of_two(law: dict[str, Any], name: str) -> str:
        error = law[f"{name}_error"]
        return f"{law[name]:.3f} ± {error:.3f}" if error else f"{law[name]:g}, fixed"

    rows = [
        (
            law["name"],
            count(law["rows"]),
            percent(law["overlap"]),
            of_two(law, "zero").replace("-", "\N{MINUS SIGN}"),
            of_two(law, "slope"),
            significant(law["factor"], 2),
            significant(law["common"], 2),
            significant(law["growth"], 2),
            significant(law["degrees"], 2),
        )
        for law in laws
    ]
    header = ("survey", "stars", "near others", "zero point c [mag]", "slope g")
    caption = (
        "Surveys: extinctions are c + g A, with A that of the reference; their errors "
        "are f times the stated ones, τ and κ A in quadrature, with a Student-T's "
        "tails; near are stars within 1° and 20% in distance. Fixed are those of the "
        "reference, and of surveys with too few stars"
    )
    return Table(caption, rows, (*header, "errors × f", "τ [mag]", "κ", "ν"))


def _learnt(run: Run) -> Table:
    """Tabulate the prior's scales and their relative standard errors."""
    plan, lognormal = run.plan, run.plan.is_lognormal
    errors = (run.summary.get("learning") or {}).get("errors") or {}

    def row(name: str, key: str, text: str) -> tuple[str, str, str]:
        error = errors.get(key)
        # The square root of a variance has half its relative error.
        half = 2 if key == "variance" else 1
        said = "unconstrained" if error is None or error > 1 else percent(error / half)
        return name, text, said if key in errors else "not learnt"

    unit = "of the logarithm" if lognormal else "mag/pc"
    centre = f"{significant(1000 * plan.mean.value)} mag/kpc at the Sun"
    scale_height = getattr(plan.mean, "scale_height", None)
    height = f"{significant(scale_height)} pc" if scale_height else "none"
    octaves = ", ".join(f"{math.exp(each):.2g}" for each in plan.bend)
    bent = (
        [("power at octaves below, times", octaves, "not estimated")] if octaves else []
    )
    rows = [
        row("lengthscale", "lengthscale", f"{by(plan.lengthscale, 3)} pc"),
        *bent,
        row("standard deviation", "variance", f"{significant(plan.std)} {unit}"),
        row("median density" if lognormal else "mean density", "mean", centre),
        row("scale height", "scale_height", height),
        row("common noise", "common_noise", f"{significant(plan.common_noise)} mag"),
    ]
    if run.posterior.residual is None:
        share = significant(plan.subgrid_share)
        rows.append(row("unresolved share", "subgrid_share", share))
    header = ("scale", "value", "relative standard error")
    return Table("The prior, and how well the stars constrain it", rows, header)


def diagnostics(data: ReportData) -> list[Block]:
    """Write the convergence of the solves, and the cost of the fit's parts."""
    found, resumed = data.run.summary, data.run.provenance.get("resumed") or []
    seconds, memory = found["seconds"], size(found["peak_memory_bytes"])
    whole = duration(sum(seconds.values()))
    ended = "Its solvers converged" if found["converged"] else "IT DID NOT CONVERGE"
    often = "never interrupted"
    if resumed:
        often = f"interrupted and resumed {several(len(resumed), 'time')}"
    blocks: list[Block] = [
        f"The fit took {whole} and at most {memory} of memory; it was {often}. {ended}."
    ]
    stages: dict[str, list[Record]] = {}
    for record in data.records:
        if "seconds" in record:
            # Drop the numbers of the samples.
            part = re.sub(r" \d+-\d+$", "", record["stage"])
            stages.setdefault(part, []).append(record)
    rows = []
    for name, own in stages.items():
        when = " to ".join(significant(own[i]["seconds"]) for i in (0, -1))
        numbers = ", ".join(
            f"{key.replace('_', ' ')} {significant(own[-1][key])}"
            for key in _NUMBERS
            if own[-1].get(key) is not None
        )
        rows.append((name, count(len(own)), f"{when} s", numbers or "–"))
    if rows:
        header = ("part", "records", "when", "the last one")
        blocks.append(Table("Iterations by part", rows, header))
    costs = [(_PARTS.get(name, str(name)), duration(s)) for name, s in seconds.items()]
    costs += [("in all", whole), ("peak memory of the process", memory)]
    blocks.append(Table("Time and memory", costs))
    if resumed:
        times = [
            (str(n), ", ".join(f"{name} {value}" for name, value in e.items() if value))
            for n, e in enumerate(resumed, start=1)
        ]
        blocks.append(Table("Taken up again", times))
    return blocks


def origin(data: ReportData) -> list[Block]:
    """Write inputs with hashes, catalogues, faults, configuration and citation."""
    run, cited = data.run, data.origin["citation"]
    recorded = run.provenance
    hashes = [(one["name"], one["sha256"]) for one in recorded["inputs"]]
    blocks: list[Block] = [Table("Inputs", hashes, ("file", "SHA-256"))]
    catalogue = recorded.get("catalogue") or {}
    for name, table in catalogue.get("partitions", {"": catalogue}).items():
        if not (report := table.get("report")):
            continue
        rows = [
            ("rows read", count(report["rows_read"])),
            ("rows kept", count(report["rows_kept"])),
            *((f"fault: {what}", count(n)) for what, n in report["faults"].items()),
            *((f"cut: {what}", count(n)) for what, n in report["cuts"].items()),
            ("negative extinctions kept", count(report["negative_extinctions"])),
            *((f"input {i['name']}", i["sha256"]) for i in table.get("inputs", ())),
            *(("note", note) for note in report["notes"]),
        ]
        blocks.append(Table(f"Ingestion {name}".strip(), rows))
    software = cited["software"]
    works = [("software", f"{software['title']}, version {software['version']}")]
    for work in cited["references"]:
        who = ", ".join(name["family-names"] for name in work["authors"])
        where = work.get("conference", {}).get("name", "")
        works.append(("method", f"{who} ({work['year']}): {work['title']}. {where}"))
    for work, paper in cited_papers(cited):
        works.append((str(work.get("name", "extinction curve")), paper))
    everything = json.dumps({"summary": run.summary, "provenance": recorded}, indent=1)
    settings = (run.path / "config.toml").read_text()
    return [
        *blocks,
        str(cited["message"]),
        Table("How to cite", works),
        Listing("Configuration as it was used", settings),
        Listing("Everything that is recorded (run.json)", everything),
    ]
