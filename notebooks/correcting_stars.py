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
# # Correcting stars for extinction
#
# The main use of a dust map: magnitudes corrected for extinction, with an error that
# includes the map's uncertainty. This notebook makes a small map of a mock galaxy, so that
# the truth is known, opens it, and corrects a colour-magnitude diagram with it. With your
# own map, start at *Open a map*.

# %%
# %matplotlib inline
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.bands import conversion
from pipelines.formats.zarr import read_zarr
from pipelines.cubes.cube import truth_extinction

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
plt.rcParams.update(
    {
        "figure.dpi": 130,
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
)
folder = Path(tempfile.mkdtemp(prefix="correcting-stars-"))
rng = np.random.default_rng(5)

# %% [markdown]
# ## Make a map
#
# From 2,500 mock stars within 600 pc, on a coarse grid with given scales, in seconds.

# %%
box = {"half_x": 600, "half_y": 600, "half_z": 200}
mock = folder / "mock.parquet"
made = dustmap.simulate(stars=2500, seed=6, truth=box)
made.write(mock, truth=folder / "truth.zarr")
dustmap.ingest(mock, folder / "stars.parquet", preset="mock")
settings = {
    "box.x": [-600, 600],
    "box.y": [-600, 600],
    "box.z": [-200, 200],
    "box.spacing": 40,
    "prior.lengthscale": 100,
    "prior.std": 1.4,
    "inference.learn": False,
    "inference.samples": 16,
}
dustmap.fit(folder / "stars.parquet", output=folder / "run", settings=settings)

# %% [markdown]
# ## Open a map
#
# A run folder (or its `map.zarr`). Only the chunks around the coordinates are read. The
# mock galaxy's band is arbitrary; we take it for $A_V$.

# %%
dust = dustmap.open_map(folder / "run")
print("band of the map:", dust.band)
here = SkyCoord(
    l=[0, 90, 180, 270] * u.deg, b=0 * u.deg, distance=400 * u.pc, frame="galactic"
)
print(dust.query(here, integrated=True, mode="median"))
print(dust.query(here, integrated=False, mode="median"))

# %% [markdown]
# The first line is the *integrated* extinction from us to the place, in magnitudes: this
# corrects a star. The second is the *density* of extinction there, in magnitudes per
# parsec. The two are easily confused, so `query` has no default.
#
# ## Stars to correct
#
# 600 stars that were not fitted: a main sequence and a giant branch of absolute
# magnitudes $M_G$ and colours, seen through the true dust at distances with an error of
# 3%, in Gaia's bands. The map is in $A_V$; an extinction curve, integrated over the passbands
# and the spectrum of a star like the Sun, gives the two factors. (In a band as wide as $G$ a
# star of 4000 K has 10% less, one of 10,000 K 11% more.)

# %%
N = 600
l, b = rng.uniform(0, 360, N), np.degrees(np.arcsin(rng.uniform(-0.35, 0.35, N)))
distance = rng.uniform(100, 560, N)
giant = rng.random(N) < 0.25
colour = np.where(giant, rng.uniform(1.0, 1.4, N), rng.uniform(0.1, 1.6, N))
absolute = np.where(giant, 3.2 - 2.6 * (colour - 0.9), 0.9 + 4.1 * colour)
absolute = absolute + 0.05 * rng.standard_normal(N)

to_g, to_colour = conversion("A_V", "A_G"), conversion("A_V", "E(BP-RP)")
for change in (to_g, to_colour):
    print(f"{change.target} = {change.factor:.3f} {change.source}", end="  ")
    print(f"({change.curve}, R_V = {change.r_v:g}, at A_V = {change.at_av:g} mag)")

truth = read_zarr(folder / "truth.zarr")
true_av = truth_extinction(truth, l, b, distance)
known = np.isfinite(true_av)
l, b, distance, colour, absolute, true_av = (
    part[known] for part in (l, b, distance, colour, absolute, true_av)
)
modulus = 5 * np.log10(distance / 10)
seen_g = absolute + modulus + to_g.factor * true_av
seen_colour = colour + to_colour.factor * true_av
seen_distance = distance * (1 + 0.03 * rng.standard_normal(len(distance)))

# %% [markdown]
# ## Query, with an error and flags
#
# One `SkyCoord` holds all stars, in any frame (here equatorial).

# %%
coords = SkyCoord(
    l=l * u.deg, b=b * u.deg, distance=seen_distance * u.pc, frame="galactic"
).icrs
a_v, flags = dust.query(coords, integrated=True, mode="mean", return_flags=True)
a_v_std = dust.query(coords, integrated=True, mode="std")
use = flags["inside"] & ~flags["extrapolated"]
print(f"{len(coords)} stars, {flags['inside'].sum()} in the map,", end=" ")
print(f"{flags['extrapolated'].sum()} beyond the last star of their sight line")

# %% [markdown]
# Beyond the last fitted star of a sight line the map is the prior: such stars are left out
# here, as are stars outside the map (NaN).
#
# ## Magnitudes without dust
#
# $M_G = G - \mu - f_G A_V$ with $\mu = 5 \lg(d/10\,\mathrm{pc})$. The errors of the
# extinction and of the distance both enter:
#
# $$ \sigma_M^2 = f_G^2\, \sigma_A^2 + \Bigl(\frac{5}{\ln 10}\frac{\sigma_d}{d}\Bigr)^2. $$

# %%
a_g, a_g_std = to_g.factor * a_v.value, to_g.factor * a_v_std.value
seen_modulus = 5 * np.log10(seen_distance / 10)
corrected = seen_g - seen_modulus - a_g
corrected_colour = seen_colour - to_colour.factor * a_v.value
error = np.hypot(a_g_std, 5 / np.log(10) * 0.03)

figure, axes = plt.subplots(1, 3, figsize=(7.4, 3.2), sharex=True, sharey=True)
panels = (
    ("as seen", seen_colour, seen_g - seen_modulus),
    ("corrected", corrected_colour, corrected),
    ("truth", colour, absolute),
)
for panel, (name, x, y) in zip(axes, panels, strict=True):
    panel.plot(x[use], y[use], ".", ms=2.5, color=BLUE, alpha=0.7)
    panel.set_title(name, fontsize=8)
    panel.set_xlabel("BP − RP")
axes[0].set_ylabel(r"$M_G$")
axes[0].invert_yaxis()
length = 1.0
axes[0].annotate(
    "",
    xy=(0.3 + length * to_colour.factor, 6.5 + length * to_g.factor),
    xytext=(0.3, 6.5),
    arrowprops={"arrowstyle": "->", "color": RED},
)
axes[0].text(0.3, 6.3, r"$A_V = 1$", color=RED, fontsize=7)
plt.show()

# %% [markdown]
# Dust moves stars along the arrow; the correction moves them back. The residuals:

# %%
pull = (corrected - absolute)[use] / error[use]
before = (seen_g - seen_modulus - absolute)[use]
after = (corrected - absolute)[use]
print(f"scatter of M_G - truth: {before.std():.3f} mag seen, {after.std():.3f} corrected")
print(f"offset: {before.mean():+.3f} mag seen, {after.mean():+.3f} corrected")
within = np.mean(np.abs(pull) < 1), np.mean(np.abs(pull) < 2)
print(f"within one stated error {within[0]:.0%}, within two {within[1]:.0%}")
assert after.std() < 0.6 * before.std()

figure, panel = plt.subplots(figsize=(4.2, 2.6))
panel.hist(pull, bins=np.linspace(-4, 4, 33), density=True, color=BLUE, alpha=0.5)
x = np.linspace(-4, 4, 200)
panel.plot(x, np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), color="0.2", lw=1)
panel.set_xlabel("(corrected − true) / stated error")
panel.set_ylabel("density of stars")
plt.show()

# %% [markdown]
# ## Quantiles for asymmetric errors
#
# Extinction is positive. At small values the 16% and 84% quantiles are better than a
# mean and a standard deviation.

# %%
some = coords[use][:5]
low, middle, high = dust.query(
    some, integrated=True, mode="percentile", pct=[16, 50, 84]
).T
for row in zip(middle, low, high, strict=True):
    print("A_V = {:.2f}, 68% between {:.2f} and {:.2f}".format(*(v.value for v in row)))

# %% [markdown]
# ## The distance of an extinction
#
# For a star of known colour excess and unknown distance, or a cloud in front of stars: the
# distance at which a sight line reaches an extinction, with its interval; NaN if the map
# ends before, and then the lower end is how far the map goes.

# %%
DIRECTIONS = np.array([20.0, 80.0, 270.0, 330.0])
sky = SkyCoord(l=DIRECTIONS * u.deg, b=0 * u.deg, frame="galactic")
WANTED = 0.25
crossing = dust.distance_at(sky, WANTED * u.mag)
along = np.linspace(2, 560, 280)
figure, axes = plt.subplots(1, 4, figsize=(7.4, 2.3), sharey=True)
for k, panel in enumerate(axes):
    line = SkyCoord(
        l=np.full(280, DIRECTIONS[k]) * u.deg,
        b=np.zeros(280) * u.deg,
        distance=along * u.pc,
        frame="galactic",
    )
    bands = dust.query(line, integrated=True, mode="percentile", pct=[16, 50, 84]).value
    panel.fill_between(along, bands[:, 0], bands[:, 2], color=BLUE, alpha=0.25)
    panel.plot(along, bands[:, 1], color=BLUE, label="map, 68%")
    real = truth_extinction(truth, np.full(280, DIRECTIONS[k]), np.zeros(280), along)
    panel.plot(along, real, "--", color="0.2", lw=1, label="truth")
    panel.axhline(WANTED, color=ORANGE, lw=0.8)
    ends = crossing.lower[k].value, crossing.upper[k].value
    if np.isfinite(crossing.distance[k]):
        end = ends[1] if np.isfinite(ends[1]) else 600
        panel.axvspan(ends[0], end, color=ORANGE, alpha=0.2, lw=0)
        panel.axvline(crossing.distance[k].value, color=ORANGE, lw=1)
    panel.set_title(f"l = {DIRECTIONS[k]:.0f}°", fontsize=8)
    panel.set_xlabel("distance [pc]")
    panel.set_xlim(0, 560)
    panel.set_ylim(0, 1.5)
    where = real.searchsorted(WANTED)
    answer = f"{crossing.distance[k]:.0f} ({ends[0]:.0f} to {ends[1]:.0f} pc)"
    print(f"l = {DIRECTIONS[k]:.0f}: {answer}", end="; ")
    print(f"truth {along[where]:.0f} pc" if where < 280 else "truth: not in the box")
axes[0].set_ylabel(r"$A_V$ [mag]")
axes[0].legend(fontsize=6.5)
plt.show()

# %% [markdown]
# Each band belongs to the integral, with all correlations along the ray. It is wide where
# the sight line meets a cloud with few stars behind it, and so is the interval of the
# distance.
#
# For a table of stars the same is one command:
#
# ```sh
# dustmap query map.zarr stars.parquet -o answers.parquet --integrated
# ```
