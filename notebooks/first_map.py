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
# # A first map: from a catalogue to a figure
#
# Stars tell us how much dust lies between them and us: star $n$ at distance $d_n$ in
# direction $\hat s_n$ has the extinction
#
# $$ y_n = \int_0^{d_n} \rho(s\,\hat s_n)\,\mathrm{d}s + \text{noise}, $$
#
# where $\rho$ is the density of extinction in magnitudes per parsec. A map is the
# answer to the inverse question: which $\rho(x)$ do all stars together allow? `dustmap`
# takes the logarithm of $\rho$ to be a Gaussian process, so that no dust is negative,
# and gives the posterior: mean, median, a standard deviation, and samples.
#
# Here the catalogue is a mock one, so that the map can be held against the truth. With
# a catalogue of your own, begin at *Ingest*. The same steps are one command each in a
# terminal: `dustmap simulate`, `ingest`, `fit`, `plot`.

# %%
# %matplotlib inline
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.catalog.ingest import ingest
from pipelines.catalog.schema import read_stars, read_table
from pipelines.config import FitConfig, SimulateConfig, load_config
from pipelines.maps.cube import LineOfSight
from pipelines.formats.zarr import read_zarr, write_zarr
from pipelines.figures import density_slice, face_on, lines_of_sight
from pipelines.fit import fit
from pipelines.products import lines_of_sight as find_lines
from pipelines.products import map_cube
from pipelines.run.folder import read_run
from pipelines.simulate import simulate
from pipelines.maps.truth import truth_density, truth_extinction

folder = Path(tempfile.mkdtemp(prefix="first-map-"))

# %% [markdown]
# ## A mock galaxy
#
# 3,000 stars within about 800 pc of the Sun: an exponential disc of dust with
# turbulence, clouds and cavities; stars seen down to a limiting magnitude; a parallax
# and an extinction measured with an error each. Every key and its default:
# `dustmap config --simulate`.

# %%
galaxy = load_config(
    SimulateConfig,
    overrides=[
        "stars=3000",
        "seed=3",
        "truth.half_x=800",
        "truth.half_y=800",
        "truth.half_z=200",
    ],
)
print(
    simulate(
        galaxy, folder / "mock.parquet", truth=folder / "truth.zarr", overwrite=False
    )
)

# %% [markdown]
# ## Ingest
#
# `ingest` reads a catalogue (CSV, FITS, VOTable, parquet, HDF5) into one table with
# known columns and units. A *preset* knows a survey's columns; for a catalogue without
# one, name them: `mappings=["distance=dist_pc:pc", ...]`. Faulty rows are dropped and
# counted.

# %%
print(ingest([folder / "mock.parquet"], folder / "stars.parquet", preset="mock"))

# %% [markdown]
# ## Fit
#
# Without a configuration `fit` chooses everything: the box from the stars, the scales
# of the prior from the evidence of a subset of them, the grid from a budget of time
# and memory. Here the grid is set by hand, coarse enough to be done in seconds. A tenth
# of the stars is held out.

# %%
settings = load_config(
    FitConfig,
    overrides=[
        "box.x=[-800, 800]",
        "box.y=[-800, 800]",
        "box.z=[-200, 200]",
        "box.spacing=40",
        "data.holdout=0.1",
        "inference.seed=1",
        "inference.samples=16",
    ],
)
print(fit(folder / "stars.parquet", folder / "run", settings))

# %% [markdown]
# What was chosen stays with the run. The lengthscale is that of the covariance
# $k(r) = \sigma^2 e^{-r/\ell}$ of the density's logarithm (Matérn-1/2).

# %%
run = read_run(folder / "run")
print(f"lengthscale {run.plan.lengthscale[0]:.0f} pc, std of ln {run.plan.std:.2g}")
print(f"mean: {run.plan.mean}")

# %% [markdown]
# ## The map, face-on
#
# The median density integrated over $z$, as seen from the north Galactic pole; the Sun
# is in the middle, $l = 0$ to the right and $l = 90°$ up. The median rather than the
# mean, since the mean of a lognormal density grows without bound where no star looks.

# %%
cube = map_cube(run)
face_on(cube)

# %% [markdown]
# In the plane, beside the truth it was simulated from, and with its standard deviation:
# small where stars look through, as large as the prior's where none does.

# %%
truth = read_zarr(folder / "truth.zarr")
density_slice(cube, truth)

# %% [markdown]
# ## Lines of sight
#
# Extinction against distance in four directions, with the 68% and 95% intervals of the
# *integral* (not the sum of the errors of its parts) and the stars nearby. A mock knows
# the answer, so the true curve can be drawn too.


# %%
def with_truth(line: LineOfSight) -> LineOfSight:
    """The line of sight with the true extinction along it."""
    n = len(line.distance)
    known = truth_extinction(
        truth, np.full(n, line.l), np.full(n, line.b), line.distance * (1 - 1e-9)
    )
    return replace(line, truth=known)


directions = [(0.0, 0.0), (90.0, 0.0), (180.0, 0.0), (270.0, 0.0)]
lines_of_sight([with_truth(line) for line in find_lines(run, directions)])

# %% [markdown]
# ## Is it any good?
#
# The held-out stars were not fitted. Three questions: how far is the predicted
# extinction from the truth, compared with how much extinctions differ from one another?
# Do the intervals hold as much of the truth as they say? And does the density itself,
# which nobody measured, follow the true one?

# %%
held_out, _, _ = read_table(folder / "run" / "held_out.parquet")
true = truth_extinction(truth, held_out["l"], held_out["b"], held_out["distance"])
known = held_out["inside"] & np.isfinite(true)
error = (held_out["extinction_mean"] - true)[known]
within = np.abs(error) / held_out["extinction_std"][known]
rmse = float(np.sqrt(np.mean(error**2)))
scatter = float(true[known].std())
held_68, held_95 = float(np.mean(within < 0.9945)), float(np.mean(within < 1.96))

places = np.stack(np.meshgrid(cube.x, cube.y, cube.z, indexing="ij"), axis=-1)
there = truth_density(truth, places).transpose(2, 1, 0)
seen = (cube.arrays["support"] > 0) & np.isfinite(there)
correlation = float(np.corrcoef(cube.arrays["mean"][seen], there[seen])[0, 1])

print(f"{known.sum()} held-out stars: RMSE {rmse:.3f} mag, true scatter {scatter:.3f}")
print(f"the 68% intervals hold {held_68:.0%}, the 95% intervals {held_95:.0%}")
print(f"density where stars look through: correlation {correlation:.2f} with the truth")

# %% [markdown]
# The extinction is known far better than the density: an integral averages over what
# a sight line cannot tell apart. The grid of 40 pc and 3,000 stars blur every cloud that
# is smaller; more stars and a finer grid sharpen it.
#
# The truth is taken at the measured distance of each star, which is where the map was
# asked.

# %% [markdown]
# ## Keep it
#
# The cube as zarr, readable with any zarr v3 library; `dustmap export` writes it as
# FITS and as HEALPix maps too. The files carry units, configuration and the hashes of
# what went in.

# %%
write_zarr(folder / "map.zarr", cube)
again = read_zarr(folder / "map.zarr")
assert np.array_equal(again.arrays["mean"], cube.arrays["mean"])
