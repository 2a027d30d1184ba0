"""The noise of densities' standard deviations from 32 samples, beside many samples.

One fit with many samples (512) of a turbulent sky with defects, or of another set with
true densities. Each of four parts of 32 samples predicts held-out stars and random
places of the box, with the law of variances (`dustmap.residual.moderation`) and without
it. Noises are rms differences of logarithms from all samples without the law, whose own
noise is in them. Of the true densities at stars: coverages of 68% intervals, in all and
by terciles of the std, of 95% intervals, and log scores [nats].
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from development import fit_set
from development_sets import SETS, Development
from intervals import TURBULENT, thirds, turbulent
from report import Report, Row, data_folder, parser
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.moments import Moments
from pipelines.run.folder import read_run
from pipelines.run.residual import variance_law

_PART, _PARTS, _PLACES = 32, 4, 4_000


def main() -> None:
    options = arguments()
    report = Report.of("variances", __doc__, options)
    if options.set in TURBULENT:
        part, _ = turbulent(int(options.set.rpartition("_")[2]), options)
    else:
        part = SETS[options.set](options.data)
    if options.quick:
        part = part.first(2_000, 400)
    run = options.output / "work" / f"{options.set}-{options.samples}"
    if not run.exists():
        fit_set(part, run, [f"inference.samples={options.samples}"])
    report.tables = {options.set: compared(run, part, options.seed)}
    report.write(options.output)


def compared(path: Path, part: Development, seed: int) -> list[Row]:
    """All samples, and every part of them without and with the law."""
    run, random = read_run(path), np.random.default_rng(seed)
    residual = run.posterior.residual
    assert part.truth is not None
    assert residual is not None
    whole = replace(run.posterior, residual=replace(residual, variances=None))
    test = torch.as_tensor(part.test.positions())
    inside = torch.nonzero(run.plan.grid.contains(test))[:, 0].numpy()
    judged = random.permutation(inside)[:_PLACES]
    true = torch.as_tensor(part.truth["density"][judged])
    low, high = run.box.lower, run.box.upper
    places = test[judged], torch.from_numpy(random.uniform(low, high, (_PLACES, 3)))
    all_of_them = [whole.moments(PointValues(some)) for some in places]
    rows: list[Row] = [{"samples": "all", **of_truth(all_of_them[0], true)}]
    for first in range(0, min(_PARTS * _PART, len(whole.samples)), _PART):
        some = slice(first, first + _PART)
        own = replace(residual, residuals=residual.residuals[some], variances=None)
        plain = replace(whole, samples=whole.samples[some], residual=own)
        started = time.perf_counter()
        law = variance_law(plain)
        row: Row = {"learning [s]": time.perf_counter() - started}
        if law is not None:
            row |= {"ν": law.degrees, "ν0": law.prior_degrees}
        moderated = replace(plain, residual=replace(own, variances=law))
        for name, posterior in (("no", plain), ("yes", moderated)):
            found: Row = {"samples": f"{first} on", "law": name}
            for where, points, most in zip(("stars", "box"), places, all_of_them):
                started = time.perf_counter()
                said = posterior.moments(PointValues(points))
                found[f"predicting {where} [s]"] = time.perf_counter() - started
                found[f"std, {where}"] = noise(said.std / most.std)
                found[f"mean, {where}"] = noise(said.mean / most.mean)
                if where == "stars":
                    found |= of_truth(said, true)
            rows.append(found | (row if name == "yes" else {}))
    return rows


def noise(ratio: Tensor) -> float:
    return float(ratio.log().square().mean().sqrt())


def of_truth(found: Moments, true: Tensor) -> Row:
    """Coverages of true densities, and the mean log score of their logarithms."""
    variance = (found.std / found.mean).square().log1p()
    z = ((true / found.mean).log() + variance / 2) / variance.sqrt()
    held = (z.abs() < 1).double().numpy()
    return {
        "68%": float(held.mean()),
        "68% by std": thirds(held, found.std.numpy()),
        "95%": float((z.abs() < 1.96).double().mean()),
        "log score": float((-(z**2) / 2 - variance.log() / 2).mean()),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--skies", type=Path, help="of turbulent skies, made if none")
    options.add_argument("--set", default=TURBULENT[1], metavar="NAME")
    options.add_argument("--samples", type=int, default=512)
    found = options.parse_args()
    found.skies = found.skies or found.output / "work"
    return found


if __name__ == "__main__":
    main()
