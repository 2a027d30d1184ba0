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
# solution of the inverse problem: the density $\rho(x)$ given all stars. `dustmap` models
# $\ln\rho$ as a Gaussian process, so that the density is positive, and infers the
# posterior: mean, median, standard deviation and samples.
#
# Here the catalogue is simulated, so that the map can be compared with the truth. With
# your own catalogue, start at *Ingest*. In a terminal each step is one command:
# `dustmap simulate`, `ingest`, `fit`, `plot`.

# %%
# %matplotlib inline
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import dustmap
from pipelines.catalog.schema import read_table
from pipelines.figures.box import density_slice
from pipelines.figures.sightlines import lines_of_sight
from pipelines.formats.zarr import read_zarr, write_zarr
from pipelines.cubes.cube import truth_extinction
from pipelines.cubes.sky import LineOfSight
from pipelines.run.folder import read_run

folder = Path(tempfile.mkdtemp(prefix="first-map-"))

# %% [markdown]
# ## A mock galaxy
#
# 3,000 stars within about 800 pc of the Sun: an exponential disc of dust with
# turbulence, clouds and cavities; stars seen down to a limiting magnitude; a parallax
# and an extinction, each measured with an error. `dustmap config --simulate` prints every
# setting and its default.

# %%
box = {"half_x": 800, "half_y": 800, "half_z": 200}
galaxy = {"stars": 3000, "seed": 3, "truth": box}
mock = folder / "mock.parquet"
dustmap.simulate(**galaxy).write(mock, truth=folder / "truth.zarr")

# %% [markdown]
# ## Ingest
#
# `ingest` reads a catalogue (CSV, FITS, VOTable, parquet, HDF5) into one table with
# known columns and units. A *preset* lists a survey's columns; for a catalogue without
# one, name them: `mappings=["distance=dist_pc:pc", ...]`. Faulty rows are dropped and
# counted.

# %%
print(dustmap.ingest(mock, folder / "stars.parquet", preset="mock"))

# %% [markdown]
# ## Fit
#
# Without settings `fit` chooses everything: the box and the scales of the prior from the
# stars, the grid from a budget of time and memory. Here a coarse grid is set by
# hand, so that the fit takes seconds. A tenth of the stars is held out. `fit` writes the run
# folder and opens it as a map.

# %%
settings = {
    "box.x": [-800, 800],
    "box.y": [-800, 800],
    "box.z": [-200, 200],
    "box.spacing": 40,
    "data.holdout": 0.1,
    "inference.seed": 1,
    "inference.samples": 16,
}
dustmap.fit(folder / "stars.parquet", output=folder / "run", settings=settings)

# %% [markdown]
# The run keeps its plan. The lengthscale belongs to the covariance of the log density,
# $k(r) = \sigma^2 e^{-r/\ell}$ (Matérn-1/2).

# %%
run = read_run(folder / "run")
print(f"lengthscale {run.plan.lengthscale[0]:.0f} pc, std of ln {run.plan.std:.2g}")
print(f"mean: {run.plan.mean}")

# %% [markdown]
# ## The map, face-on
#
# The mean density integrated over $z$, as seen from the north Galactic pole, and its
# standard deviation; the Sun is in the middle, $l = 0$ to the right and $l = 90°$ up. Where
# no sight line passes the mean of a log-normal density has a long tail: it is pale and
# hatched there, and sets no colours.

# %%
dust = dustmap.open_map(folder / "run")
cube = dust.cube
dust.plot("face-on")

# %% [markdown]
# The mean density in the plane, beside the truth.

# %%
truth = read_zarr(folder / "truth.zarr")
density_slice(cube, truth)

# %% [markdown]
# ## Lines of sight
#
# Extinction against distance in four directions, with the 68% and 95% intervals of the
# *integral* (not the sum of its cells' errors) and the stars nearby. The true curve is
# known for a mock.


# %%
def with_truth(line: LineOfSight) -> LineOfSight:
    """The line of sight with the true extinction along it."""
    n = len(line.distance)
    known = truth_extinction(
        truth, np.full(n, line.l), np.full(n, line.b), line.distance * (1 - 1e-9)
    )
    return replace(line, truth=known)


directions = [(0.0, 0.0), (90.0, 0.0), (180.0, 0.0), (270.0, 0.0)]
lines_of_sight([with_truth(line) for line in dust.answers.lines(directions)])

# %% [markdown]
# ## Check the map
#
# The held-out stars were not fitted. How large is the error of the predicted extinction,
# compared with the scatter of the extinctions? Do the intervals have their nominal
# coverage? Does the density correlate with the true density?

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
there = truth.sample("density", places).transpose(2, 1, 0)
seen = (cube.arrays["support"] > 0) & np.isfinite(there)
correlation = float(np.corrcoef(cube.arrays["mean"][seen], there[seen])[0, 1])

print(f"{known.sum()} held-out stars: RMSE {rmse:.3f} mag, true scatter {scatter:.3f}")
print(f"the 68% intervals hold {held_68:.0%}, the 95% intervals {held_95:.0%}")
print(f"density where sight lines pass: correlation {correlation:.2f} with the truth")

# %% [markdown]
# The extinction is known far better than the density: the integral averages over distances
# that a sight line cannot separate. A grid of 40 pc and 3,000 stars blur smaller clouds;
# more stars and a finer grid resolve them.
#
# The truth is evaluated at each star's measured distance, as is the map.

# %% [markdown]
# ## Export
#
# Write the cube as zarr, which any zarr v3 library reads; `dustmap export` also writes FITS
# and HEALPix maps. The files hold units, configuration and hashes of the inputs.

# %%
write_zarr(folder / "map.zarr", cube)
again = read_zarr(folder / "map.zarr")
assert np.array_equal(again.arrays["mean"], cube.arrays["mean"])
