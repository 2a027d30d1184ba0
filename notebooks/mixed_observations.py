# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Values, derivatives and integrals of one function
#
# A dust map is made from integrals alone. The mathematics underneath takes any linear
# functional of the field,
#
# $$ L_n f = \sum_j w_{nj}\, \partial^{\alpha_{nj}} f(x_{nj}), $$
#
# a value (one node), a derivative (one node, $\alpha = 1$), an integral (many nodes), and
# any mixture of them in one fit, each with its own noise. The example is a function on
# $[0, 10]$, observed by values on the left, by derivatives in the middle and by integrals
# from $x = 6$ on the right.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import torch

from dustmap.functionals import (
    Derivatives,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.gp.exact import ExactGP
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import LatentMoments, Observations, predict
from dustmap.kernels import Matern52
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening, TorusWhitening

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
plt.rcParams.update(
    {
        "figure.dpi": 130,
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "figure.constrained_layout.use": True,
    }
)
rng = np.random.default_rng(4)


def column(x) -> torch.Tensor:
    """Positions as the package takes them: one row each, here of one coordinate."""
    return torch.as_tensor(np.asarray(x, dtype=float)).reshape(-1, 1)


# %% [markdown]
# ## The function and what is measured of it
#
# Function, derivative and integral have closed forms, so that no check below depends on
# another quadrature.


# %%
def truth(x):
    return np.sin(1.3 * x) + 0.5 * np.sin(0.5 * x + 1)


def slope(x):
    return 1.3 * np.cos(1.3 * x) + 0.25 * np.cos(0.5 * x + 1)


def integral(a, b):
    def primitive(x):
        return -np.cos(1.3 * x) / 1.3 - np.cos(0.5 * x + 1)

    return primitive(b) - primitive(a)


NOISE = {"values": 0.10, "slopes": 0.20, "integrals": 0.05}
START = 6.0
places = {
    "values": np.sort(rng.uniform(0.0, 3.5, 12)),
    "slopes": np.sort(rng.uniform(3.0, 6.5, 10)),
    "integrals": np.sort(rng.uniform(6.3, 10.0, 14)),
}
functionals: dict[str, Functionals] = {
    "values": PointValues(column(places["values"])),
    "slopes": Derivatives(column(places["slopes"]), 0),
    "integrals": LineIntegrals(
        column(places["integrals"]), GaussLegendre(count=24), start=column([START])
    ),
}
exact_data = {
    "values": truth(places["values"]),
    "slopes": slope(places["slopes"]),
    "integrals": integral(START, places["integrals"]),
}
measured = {
    kind: torch.as_tensor(known + NOISE[kind] * rng.standard_normal(len(known)))
    for kind, known in exact_data.items()
}

figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.2))
units = ("f(x)", "df/dx", r"$\int_6^x f$")
for panel, kind, unit in zip(axes, measured, units, strict=True):
    panel.errorbar(
        places[kind], measured[kind], NOISE[kind], fmt="o", ms=3, lw=0.8, color="0.2"
    )
    panel.set_title(f"{len(measured[kind])} {kind}", fontsize=8)
    panel.set_xlabel("x")
    panel.set_ylabel(unit)
plt.show()

# %% [markdown]
# ## One fit
#
# `Stack` puts the kinds one after another; the noise is a variance for each
# observation. The covariance between any two of them follows from the kernel by
# differentiating and integrating it. (Matérn-1/2 has no derivative and raises an error.)
# The scales maximise the evidence.

# %%
kernel = Matern52(lengthscale=1.0, variance=1.0)
LEAST = min(NOISE.values()) ** 2


def fit(kinds, learnt=None):
    """The exact posterior of these kinds, with scales learnt or those of another."""
    variance = torch.cat([torch.full_like(measured[k], NOISE[k] ** 2) for k in kinds])
    model = ExactGP(
        kernel if learnt is None else learnt.kernel,
        Stack([functionals[k] for k in kinds]),
        torch.cat([measured[k] for k in kinds]),
        noise=0.5 * LEAST,
        known_noise=variance - 0.5 * LEAST,
    )
    if learnt is not None:
        return model
    found = maximise(model, LBFGS(names=("lengthscale", "variance")))
    assert found.converged
    return found.model


together = fit(list(measured))
scale = float(together.kernel.lengthscale)
print(f"lengthscale {scale:.2f}, std {float(together.kernel.variance) ** 0.5:.2f}")
print(f"log evidence {together.log_marginal():.2f} (natural)")

# %% [markdown]
# Each kind alone, and all together, with the same scales. Values fix the function locally.
# Derivatives fix its shape but not its level: the band is wide and its curves are parallel.
# Integrals from one point do not constrain the function before it. Together the values on
# the left set the level that the derivatives carry to the right.

# %%
along = np.linspace(0.0, 10.0, 201)
shown = [["values"], ["slopes"], ["integrals"], list(measured)]
figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.4), sharex=True, sharey=True)
for panel, kinds in zip(axes.flat, shown, strict=True):
    found = fit(kinds, together).predict(PointValues(column(along)))
    mean, std = found.mean.numpy(), found.variance.sqrt().numpy()
    panel.fill_between(along, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.15)
    panel.fill_between(along, mean - std, mean + std, color=BLUE, alpha=0.25)
    panel.plot(along, mean, color=BLUE, label="mean, 68% and 95%")
    panel.plot(along, truth(along), "--", color="0.2", label="truth")
    for kind, colour in zip(measured, (ORANGE, GREEN, RED), strict=True):
        if kind in kinds:
            ticks = np.full(len(places[kind]), -3.3)
            panel.plot(places[kind], ticks, "|", color=colour, ms=7, label=kind)
    panel.set_title(" + ".join(kinds), fontsize=8)
    panel.set_ylim(-3.6, 3.6)
axes[1, 1].legend(fontsize=6.5, ncols=2, loc="upper center")
for panel in axes[1]:
    panel.set_xlabel("x")
for panel in axes[:, 0]:
    panel.set_ylabel("f(x)")
plt.show()

# %% [markdown]
# ## Predicting what was not measured
#
# The posterior predicts any kind: derivatives where values were measured, values where
# integrals were, an integral across all three parts, with correlations in its error.

# %%
asked = {
    "slope at x = 1": (Derivatives(column([1.0]), 0), slope(1.0)),
    "value at x = 8": (PointValues(column([8.0])), truth(8.0)),
    "integral from 1 to 9": (
        LineIntegrals(column([9.0]), GaussLegendre(count=48), start=column([1.0])),
        integral(1.0, 9.0),
    ),
}
for name, (functional, known) in asked.items():
    found = together.predict(functional)
    mean, std = float(found.mean), float(found.variance) ** 0.5
    print(f"{name:22s} {mean:7.3f} ± {std:.3f}   truth {known:7.3f}")
    assert abs(mean - known) < 4 * std

# %% [markdown]
# ## The same by the two engines of a map
#
# A dense covariance is cheap for 36 observations and impossible for a million. A map uses a
# grid instead: `RowwiseGaussian` is HIP-GP's way (inducing points, a row of
# features for every observation), `TorusGaussian` the full-batch way (a sparse matrix
# and FFTs). Both take the same functionals. On a grid that resolves the lengthscale they
# agree with the exact answer.

# %%
everything = Stack(list(functionals.values()))
y = torch.cat(list(measured.values()))
noise = torch.cat([torch.full_like(v, NOISE[k] ** 2) for k, v in measured.items()])
wanted = PointValues(column(along))
exact_end = together.predict(wanted)
found: dict[str, LatentMoments] = {}

grid = Grid(shape=(81,), spacing=(0.15,), origin=(-1.0,))
rows = RowwiseGaussian(
    ToeplitzWhitening(together.kernel, grid, lengthscales=(scale,)), everything
)
step = HipSettings(family="full", batch_size=len(y), epochs=1, natural_rate=1.0)
fitted = fit_svi(rows, Observations.of(rows, y, noise), step, generator=torch.Generator())
moments = predict(rows.at(wanted), fitted.q)
found["rows (HIP-GP)"] = LatentMoments(mean=moments.mean, variance=moments.variance)

cells = Torus(grid=grid, shape=(180,))
draw = torch.Generator().manual_seed(1)
torus = TorusGaussian(
    TorusWhitening(together.kernel, cells),
    everything,
    generator=draw,
    interpolation="cubic",
)
solved = infer(
    torus,
    y,
    noise,
    settings=FullBatch(
        solver=ConjugateGradients(rtol=1e-8, max_steps=2000),
        samples=400,
        sample_rtol=1e-5,
        subgrid_noise=False,
    ),
    generator=draw,
)
assert solved.converged
seen = torus.at(wanted)
draws = seen.apply(solved.samples)
found["torus (full batch)"] = LatentMoments(
    mean=seen.apply(solved.mean), variance=draws.var(dim=0)
)

for name, moments in found.items():
    shift = ((moments.mean - exact_end.mean) / exact_end.variance.sqrt()).abs().max()
    ratio = (moments.variance / exact_end.variance).sqrt()
    print(
        f"{name:20s} mean within {float(shift):.3f} std of the exact one; "
        f"std {float(ratio.min()):.2f} to {float(ratio.max()):.2f} of it"
    )
    assert float(shift) < 0.2

# %% [markdown]
# The full batch has its standard deviations from 400 samples, which are good to
# $1/\sqrt{2 \cdot 400} = 3.5\%$. Samples also show correlations: at the right end they fan
# out, yet have nearly the same integral.

# %%
figure, panel = plt.subplots(figsize=(6.4, 2.6))
panel.plot(along, draws[:12].T.numpy(), color=BLUE, lw=0.6, alpha=0.6)
panel.plot(along, exact_end.mean, color=ORANGE, label="exact mean")
panel.plot(along, truth(along), "--", color="0.2", label="truth")
panel.set_xlabel("x")
panel.set_ylabel("f(x)")
panel.legend(ncols=2)
plt.show()

spread_of_value = float(draws[:, -1].std())
last = LineIntegrals(column([10.0]), GaussLegendre(count=24), start=column([START]))
spread_of_integral = float(torus.at(last).apply(solved.samples).std())
print(f"at x = 10 the value is known to {spread_of_value:.3f}, ")
print(f"the integral from 6 to 10 to {spread_of_integral:.3f}")

# %% [markdown]
# A dust map behaves alike: the extinction to a star is known far better than the density
# next to it.
