"""Samples of a positive density beside an exact sampler, on small problems.

Randomised maximum likelihood is exact for a linear model alone. On small boxes of
log-normal dust with stars in them its samples stand beside those of elliptical slice
sampling (Murray, Adams & MacKay 2010), whose chains start from them and know the same
prior and likelihood; the density is the grid's, without what is below it. Columns are
extinctions from the Sun to other places in the box, where stars are few, too. Of both
samplers the table has the mean over the truth's, and their ratios: of mean columns, of
the spread of columns and of their logarithms, and of the mass in the box.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
import torch
from jaxtyping import Float
from report import Report, Row, parser
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import Matern12
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening
from pipelines.base.table import Table

# Cells, their width [pc], the lengthscale [pc] and the median density [mag/pc].
_SHAPE, _WIDTH, _LENGTHSCALE, _DENSITY = (10, 10, 6), 40.0, 100.0, 2e-3
_STARS, _COLUMNS, _SAMPLES = 150, 400, 32
# Part of the chains that is left out, and steps between samples that are kept.
_BURNT, _THINNED = 0.25, 10


def main() -> None:
    options = arguments()
    report = Report.of("calibration", __doc__, options)
    rows: list[Row] = []
    for std in options.std:
        for noise in options.noise:
            found = [sky(std, noise, seed, options.steps) for seed in options.skies]
            row: Row = {"std of ln ρ": std, "noise / mean column": noise}
            for name in found[0]:
                values = torch.tensor([each[name] for each in found])
                error = float(values.std()) / math.sqrt(len(found))
                row[name] = f"{float(values.mean()):.3f} ± {error:.3f}"
            rows.append(row)
            print(Table.of_rows(rows[-1:]).text(), file=sys.stderr, flush=True)
    report.tables = {
        f"Means over {len(options.skies)} skies, and their standard errors": rows
    }
    report.write(options.output)


def sky(std: float, noise: float, seed: int, steps: int) -> dict[str, float]:
    """Both samplers' answers on one sky."""
    generator = torch.Generator().manual_seed(seed)
    grid = Grid(
        shape=_SHAPE,
        spacing=(_WIDTH,) * 3,
        origin=tuple(-_WIDTH * (n - 1) / 2 for n in _SHAPE),
    )
    prior = Matern12(lengthscale=_LENGTHSCALE, variance=std**2)
    torus = Torus(grid=grid, shape=tuple(2 * n for n in _SHAPE))
    whitening = TorusWhitening(prior, torus)
    model = LogNormal(
        whitening, _rays(_STARS, generator), mean=ConstantMean(value=_DENSITY)
    )
    true = model.white_noise(np.random.default_rng(seed))
    column = model.apply(true)
    variance = torch.full_like(column, (noise * float(column.mean())) ** 2)
    white = torch.randn(_STARS, generator=generator, dtype=torch.float64)
    y = column + variance.sqrt() * white
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-8),
        samples=_SAMPLES,
        subgrid_noise=False,
        newton_tolerance=1e-5,
        newton_steps=60,
    )
    approximate = infer(model, y, variance, settings=settings, generator=generator)
    if not approximate.converged:
        raise RuntimeError(f"the mode of sky {seed} did not converge")
    exact = slice_samples(model, y, variance, approximate.samples, steps, generator)
    seen = model.at(_rays(_COLUMNS, generator))
    columns = [seen.apply(each) for each in (approximate.samples, exact)]
    masses = [_mass(model, each) for each in (approximate.samples, exact)]
    truth, mass = seen.apply(true), _mass(model, true[None])
    half = len(exact) // 2
    return {
        "columns / true": float(columns[0].mean() / truth.mean()),
        "exact / true": float(columns[1].mean() / truth.mean()),
        "columns / exact": float(columns[0].mean() / columns[1].mean()),
        "std / exact": float(columns[0].std(0).mean() / columns[1].std(0).mean()),
        "std of ln / exact": float(
            columns[0].log().std(0).mean() / columns[1].log().std(0).mean()
        ),
        "mass / exact": float(masses[0].mean() / masses[1].mean()),
        "exact mass / true": float(masses[1].mean() / mass),
        # How far the chains are from their end.
        "late / early chains": float(
            seen.apply(exact[half:]).mean() / seen.apply(exact[:half]).mean()
        ),
    }


def slice_samples(
    model: LogNormal,
    y: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    start: Float[Tensor, "s p"],
    steps: int,
    generator: torch.Generator,
) -> Float[Tensor, "t p"]:
    """Samples of ε by elliptical slice sampling, a chain from each start."""

    def likelihood(eps: Tensor) -> Tensor:
        return -0.5 * ((y - model.apply(eps)) ** 2 / variance).sum(-1)

    def uniform() -> Tensor:
        return torch.rand(len(start), generator=generator, dtype=torch.float64)

    normals = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    at, value, kept = start.clone(), likelihood(start), []
    for step in range(steps):
        other = torch.stack([model.white_noise(normals) for _ in at])
        threshold = value + uniform().log()
        angle = 2 * math.pi * uniform()
        low, high = angle - 2 * math.pi, angle.clone()
        going = torch.arange(len(at))
        new, found = at.clone(), value.clone()
        while len(going):
            turned = angle[going, None]
            some = at[going] * turned.cos() + other[going] * turned.sin()
            values = likelihood(some)
            good = values > threshold[going]
            new[going[good]], found[going[good]] = some[good], values[good]
            going = going[~good]
            refused = angle[going]
            low[going] = torch.where(refused < 0, refused, low[going])
            high[going] = torch.where(refused < 0, high[going], refused)
            angle[going] = (low + (high - low) * uniform())[going]
        at, value = new, found
        if step >= _BURNT * steps and step % _THINNED == 0:
            kept.append(at)
    return torch.cat(kept)


def _rays(count: int, generator: torch.Generator) -> LineIntegrals:
    """Rays from the Sun to random places in the box."""
    half = torch.tensor(_SHAPE, dtype=torch.float64) * _WIDTH / 2 - _WIDTH
    white = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return LineIntegrals(half * (2 * white - 1), FixedStep(step=_WIDTH / 4))


def _mass(model: LogNormal, eps: Float[Tensor, "s p"]) -> Float[Tensor, " s"]:
    """The density's sum over the box."""
    half = [(n - 1) / 2 * _WIDTH for n in _SHAPE]
    axes = [torch.arange(-h, h + 1, _WIDTH, dtype=torch.float64) for h in half]
    return model.at(PointValues(torch.cartesian_prod(*axes))).apply(eps).sum(-1)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--std", type=float, nargs="+", default=[0.7, 1.2])
    options.add_argument("--noise", type=float, nargs="+", default=[0.05, 0.2, 0.5])
    options.add_argument("--skies", type=int, nargs="+", default=list(range(4)))
    options.add_argument("--steps", type=int, default=2_000)
    found = options.parse_args()
    if found.quick:
        found.std, found.noise, found.skies, found.steps = [0.7], [0.5], [0, 1], 40
    return found


if __name__ == "__main__":
    main()
