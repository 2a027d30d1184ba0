"""Is the posterior right where the prior is? Catalogues drawn from the model itself.

For every catalogue a field is drawn from the prior and noise added; the posterior at
known hyperparameters is asked for the density and the noise-free extinction at other
places. What the grid cannot resolve is drawn as inference assumes it, independent from
star to star, or as it is, by drawing the field on a grid twice as fine. Coverages are
pooled over catalogues, which are the independent units of their standard errors. Ranks
of the truth among independent posterior draws are uniform if all is well
(simulation-based calibration, Talts et al. 2018, arXiv:1804.06788).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from calibration_truths import (
    DENSITY,
    LENGTHSCALE,
    MODELS,
    SCATTER,
    TRUTHS,
    places,
    seen_by,
    whitening_of,
)
from matplotlib.figure import Figure
from report import Report, Row, parser
from scipy.stats import norm, t
from torch import Tensor

from dustmap.functionals import Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.posterior import Posterior

LEVELS = (0.50, 0.68, 0.95)
# Independent posterior draws: ranks 0 … 31, in 16 bins of two.
DRAWS, BINS = 31, 16
NOISE = 0.05  # [mag]
QUANTITIES = ("extinction", "density")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Catalogues, their stars and test places, points of the grid."""

    catalogues: int
    stars: int
    targets: int
    shape: tuple[int, int, int]


FULL = Size(catalogues=20, stars=2_000, targets=500, shape=(20, 20, 10))
QUICK = Size(catalogues=2, stars=200, targets=50, shape=(10, 10, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One catalogue: by quantity, fractions inside the levels, ranks and error."""

    inside: dict[str, list[float]]
    ranks: dict[str, np.ndarray]
    rmse: dict[str, float]
    correlation: dict[str, float]
    converged: bool
    seconds: float


def one_catalogue(name: str, truth: str, size: Size, seed: int) -> Outcome:
    """Draw a truth and its catalogue, infer, and hold the posterior against it."""
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    build, std = MODELS[name]
    whitening = whitening_of(size.shape, std)
    ends = places(size.stars, generator)
    there = places(size.targets, generator)
    drawn = TRUTHS[truth](build, whitening, (ends, there), generator)
    rays, *asked = seen_by(ends, there, whitening).parts
    white = torch.randn(size.stars, generator=generator, dtype=torch.float64)
    model = build(whitening, Stack([rays]), generator)
    result = infer(
        model,
        drawn[: size.stars] + NOISE * white,
        torch.full((size.stars,), NOISE**2, dtype=torch.float64),
        settings=settings_of(name, model),
        generator=generator,
    )
    samples = result.samples
    posterior = Posterior(model=model, mean=result.mean, samples=samples)
    # Of a pair of mirrored samples one alone is independent of the others.
    single = samples if model.linear else samples[::2]
    ranked = Posterior(model=model, mean=result.mean, samples=single)
    found = compare(posterior, ranked, Stack(asked), drawn[size.stars :], generator)
    return Outcome(
        **found,
        converged=result.converged,
        seconds=time.perf_counter() - started,
    )


def settings_of(name: str, model: ForwardModel) -> FullBatch:
    """As the pipeline's, with as many independent samples for either model."""
    return FullBatch(
        solver=ConjugateGradients(rtol=1e-4, max_steps=500),
        samples=DRAWS if name == "gaussian" else 2 * DRAWS,
        sample_rtol=1e-2,
        preconditioner_rank=min(100, model.latent_size),
        newton_tolerance=5e-3,
    )


def compare(
    posterior: Posterior,
    ranked: Posterior,
    asked: Stack,
    truth: Tensor,
    generator: torch.Generator,
) -> dict[str, dict]:
    """Coverage, ranks, error and correlation of both quantities."""
    moments = posterior.moments(asked)
    draws = ranked.draws(asked, generator)
    rank = (draws < truth).sum(dim=0).numpy().reshape(2, -1)
    true = truth.numpy().reshape(2, -1)
    mean = moments.mean.numpy().reshape(2, -1)
    inside = np.empty((2, len(LEVELS)))
    for column, level in enumerate(LEVELS):
        ends = [moments.quantile((1 + s * level) / 2) for s in (-1, 1)]
        held = (ends[0] <= truth) & (truth <= ends[1])
        inside[:, column] = held.numpy().reshape(2, -1).mean(axis=1)
    by_row = range(len(QUANTITIES))
    wrong = np.sqrt(((mean - true) ** 2).mean(axis=1))
    alike = [float(np.corrcoef(mean[row], true[row])[0, 1]) for row in by_row]
    return {
        "inside": {QUANTITIES[row]: inside[row].tolist() for row in by_row},
        "ranks": {QUANTITIES[row]: rank[row] for row in by_row},
        "rmse": {QUANTITIES[row]: float(wrong[row]) for row in by_row},
        "correlation": {QUANTITIES[row]: alike[row] for row in by_row},
    }


Case = tuple[str, str]


def pooled(case: Case, outcomes: Sequence[Outcome]) -> list[Row]:
    """Coverage of both quantities with its standard error over catalogues."""
    rows = []
    count = len(outcomes)
    for quantity in QUANTITIES:
        row: Row = {"model": case[0], "truth": case[1], "quantity": quantity}
        row["catalogues"] = count
        for column, level in enumerate(LEVELS):
            values = np.array([o.inside[quantity][column] for o in outcomes])
            row[f"in {level:.0%}"] = float(values.mean())
            row[f"± of {level:.0%}"] = float(values.std(ddof=1) / count**0.5)
        unit = "mag" if quantity == "extinction" else "mag/pc"
        row["RMSE"] = f"{np.mean([o.rmse[quantity] for o in outcomes]):.3g} {unit}"
        row["r"] = float(np.mean([o.correlation[quantity] for o in outcomes]))
        row["not converged"] = sum(not o.converged for o in outcomes)
        row["seconds each"] = float(np.mean([o.seconds for o in outcomes]))
        rows.append(row)
    return rows


def histogram(outcomes: Sequence[Outcome], quantity: str) -> np.ndarray:
    """Fractions of ranks per bin, shape ``(catalogues, BINS)``."""
    width = (DRAWS + 1) // BINS
    return np.stack(
        [
            np.bincount(o.ranks[quantity] // width, minlength=BINS)
            / len(o.ranks[quantity])
            for o in outcomes
        ]
    )


def draw(figure: Figure, outcomes: dict[Case, list[Outcome]]) -> None:
    """Histograms of ranks with their standard errors over catalogues."""
    figure.set_size_inches(7.0, 8.0)
    panels = figure.subplots(len(outcomes), len(QUANTITIES), sharex=True, sharey=True)
    for row, (case, found) in zip(panels, outcomes.items(), strict=True):
        for axes, quantity in zip(row, QUANTITIES, strict=True):
            share = BINS * histogram(found, quantity)
            error = share.std(axis=0, ddof=1) / len(found) ** 0.5
            middle = (np.arange(BINS) + 0.5) / BINS
            axes.bar(middle, share.mean(axis=0), 0.9 / BINS, yerr=error, ecolor="0.3")
            axes.axhline(1.0, color="black", linewidth=0.8)
            axes.set_title(f"{case[0]}, truth {case[1]}: {quantity}", fontsize="small")
    for axes in panels[-1]:
        axes.set_xlabel("rank of the truth among posterior draws")
    for axes in panels[:, 0]:
        axes.set_ylabel("frequency")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--catalogues", type=int)
    chosen = options.parse_args()
    report = Report.of("calibration", __doc__, chosen)
    size = QUICK if chosen.quick else FULL
    outcomes = run(size, chosen)
    report.tables = {
        "Coverage": [row for n, found in outcomes.items() for row in pooled(n, found)],
        "Ranks": [
            {"model": n, "truth": t, "quantity": q, **rank_row(found, q)}
            for (n, t), found in outcomes.items()
            for q in QUANTITIES
        ],
    }
    report.notes = [
        f"{size.stars:,} stars of {NOISE:g} mag and {size.targets} test places each, "
        f"grid {'×'.join(map(str, size.shape))} in 4×4×2 kpc, Matérn-3/2 of "
        f"{LENGTHSCALE:g} pc, density {DENSITY:g} mag/pc with a relative scatter of "
        f"{SCATTER:g}",
        f"intervals rest on {DRAWS} samples (log-normal: {2 * DRAWS} in mirrored "
        "pairs): a perfect normal one of 31 would hold "
        + " / ".join(f"{expected(level):.3f}" for level in LEVELS),
    ]
    report.write(chosen.output, lambda figure: draw(figure, outcomes))


def expected(level: float) -> float:
    """What ``mean ± z s`` holds if s² is a mean of `DRAWS` squares around the mean."""
    return float(2 * t.cdf(norm.ppf((1 + level) / 2), df=DRAWS) - 1)


def run(size: Size, chosen: argparse.Namespace) -> dict[Case, list[Outcome]]:
    """All catalogues of both models and truths; the same seeds for all."""
    numbers = range(chosen.catalogues or size.catalogues)
    return {
        (name, truth): [
            one_catalogue(name, truth, size, 1000 * chosen.seed + n) for n in numbers
        ]
        for name in MODELS
        for truth in TRUTHS
    }


def rank_row(outcomes: Sequence[Outcome], quantity: str) -> Row:
    """The mean rank (0.5 if unbiased) and what lies in the outermost bins."""
    share = histogram(outcomes, quantity)
    ranks = np.stack([o.ranks[quantity] for o in outcomes]) / DRAWS
    root = len(outcomes) ** 0.5
    middle, low, high = ranks.mean(axis=1), share[:, 0], share[:, -1]
    return {
        "mean rank": float(middle.mean()),
        "± of the rank": float(middle.std(ddof=1) / root),
        "lowest bin": float(low.mean()),
        "± lowest": float(low.std(ddof=1) / root),
        "highest bin": float(high.mean()),
        "± highest": float(high.std(ddof=1) / root),
        "uniform": 1 / BINS,
        "bins": share.mean(axis=0).round(4).tolist(),
    }


if __name__ == "__main__":
    main()
