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
# # Clouds and published sight lines
#
# Two checks of a map against the literature: are clouds at their known distances, and
# does the extinction along a sight line agree with what others published for it? Both
# need nothing but queries. This notebook makes a small map of a mock galaxy with two
# compact clouds, so that the right answers are known. With a map and references of your own
# set `DUSTMAP_MAP` (a run or a `map.zarr`), `DUSTMAP_CLOUDS` (a CSV table with the columns
# `name`, `dist_pc`, `l_approx`, `b_approx` and perhaps `e_dist_pc`; for example Zucker et
# al. 2020, A&A 633, A51) and `DUSTMAP_LINES` (`l`, `b`, `dm`, `ebv`, `sample`; for example
# sight lines of Bayestar, Green et al. 2015, ApJ 810, 25).

# %%
# %matplotlib inline
import os

import matplotlib.pyplot as plt
import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table

import dustmap
from pipelines.bands import factor, source_band

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "0.6"
plt.rcParams.update({"figure.dpi": 130, "font.size": 8, "legend.frameon": False})


def galactic(l, b, distance):
    return SkyCoord(l * u.deg, b * u.deg, distance * u.pc, frame="galactic")


# %% [markdown]
# ## A map
#
# 3,000 mock stars within 600 pc, on a coarse grid, in seconds. The dust is a thin haze
# and two Gaussian clouds, at 250 and 400 pc.

# %%
CLOUDS = Table(
    {
        "name": ["near cloud", "far cloud"],
        "dist_pc": [250.0, 400.0],
        "l_approx": [30.0, 200.0],
        "b_approx": [0.0, 0.0],
    }
)
HAZE, PEAK, RADIUS = 3e-4, 8e-3, 35.0  # mag/pc, mag/pc, pc


def true_extinction(coords, steps=400):
    """Integrate the haze and the clouds along every ray [mag]."""
    ends = coords.galactic.cartesian.xyz.to_value(u.pc).T
    at = (np.arange(steps) + 0.5) / steps
    density = np.full((len(ends), steps), HAZE)
    for row in CLOUDS:
        place = galactic(row["l_approx"], row["b_approx"], row["dist_pc"])
        centre = place.cartesian.xyz.to_value(u.pc)
        away = ((ends[:, None] * at[:, None] - centre) ** 2).sum(axis=-1)
        density += PEAK * np.exp(-away / (2 * RADIUS**2))
    return density.mean(axis=1) * np.linalg.norm(ends, axis=1)


# %%
path = os.environ.get("DUSTMAP_MAP")
if path:
    dust = dustmap.open_map(path)
else:
    rng = np.random.default_rng(8)
    count = 3000
    stars = galactic(
        rng.uniform(0, 360, count),
        np.degrees(np.arcsin(rng.uniform(-0.25, 0.25, count))),
        rng.uniform(50, 600, count),
    )
    error = np.full(count, 0.03)
    settings = {
        "box.x": [-600, 600],
        "box.y": [-600, 600],
        "box.z": [-160, 160],
        "box.spacing": 40,
        "prior.lengthscale": 100,
        "prior.std": 1.5,
        "inference.learn": False,
        "inference.samples": 16,
    }
    dust = dustmap.fit(
        stars,
        (true_extinction(stars) + rng.normal(0, error)) * u.mag,
        error * u.mag,
        declare_band="A_V",
        settings=settings,
    )
dust

# %% [markdown]
# ## Clouds
#
# The median density along the line of each cloud, averaged over a disc of 2° around it, as
# far as the map is informed by stars (the flag `extrapolated`). A cloud is *met* where the
# largest peak lies within two standard deviations of its distance and one step.
#
# Some peak always lies near some cloud. The share of the informed line within the
# tolerance of the peak is the probability that a cloud anywhere on that line would be met;
# the sum over all clouds is what chance gives. Clouds of one complex are not independent:
# keep one of each before you quote a probability.

# %%
STEP, DISC = 20.0, 2.0


def density_along(l, b):
    """Distances [pc] and median density [mag/pc] as far as stars inform the map."""
    centre = SkyCoord(l * u.deg, b * u.deg, frame="galactic")
    rays = [centre] + [
        centre.directional_offset_by(angle * u.deg, radius * u.deg)
        for radius in (DISC / 2, DISC)
        for angle in range(0, 360, 60)
    ]
    distance = np.arange(STEP, 5000.0, STEP)
    l_of = np.array([ray.l.deg for ray in rays])
    b_of = np.array([ray.b.deg for ray in rays])
    places = galactic(l_of[:, None], b_of[:, None], distance)
    density, flags = dust.query(
        places, integrated=False, mode="percentile", pct=50, return_flags=True
    )
    known = (flags["inside"] & ~flags["extrapolated"]).all(axis=0)
    last = len(known) if known.all() else int(np.argmin(known))
    return distance[:last], np.mean(density.to_value(u.mag / u.pc), axis=0)[:last]


clouds = CLOUDS
if os.environ.get("DUSTMAP_CLOUDS"):
    clouds = Table.read(os.environ["DUSTMAP_CLOUDS"], format="csv")
rows, judged = [], []
for row in clouds:
    l, b = (float(np.ma.filled(row[name], np.nan)) for name in ("l_approx", "b_approx"))
    if not np.isfinite([l, b]).all():
        continue
    distance, density = density_along(l, b)
    inner = density[1:-1]
    peaks = 1 + np.flatnonzero((inner > density[:-2]) & (inner >= density[2:]))
    if not len(peaks) or row["dist_pc"] > distance[-1]:
        continue
    error = row["e_dist_pc"] if "e_dist_pc" in clouds.colnames else 0.0
    error = float(np.ma.filled(error, np.nan))
    tolerance = np.hypot(2 * (error if np.isfinite(error) else 0.0), 2 * STEP)
    peak = distance[peaks[np.argmax(density[peaks])]]
    met = abs(peak - row["dist_pc"]) <= tolerance
    chance = np.mean(abs(distance - peak) <= tolerance)
    rows.append((row["name"], row["dist_pc"], peak, tolerance, bool(met), chance))
    judged.append((row["name"], row["dist_pc"], distance, density))
names = ("cloud", "distance [pc]", "largest peak [pc]", "tolerance [pc]", "met", "chance")
found = Table(rows=rows, names=names)
print(found)
print(
    f"{sum(found['met'])} of {len(found)} clouds are met; "
    f"{sum(found['chance']):.1f} would be by chance"
)

# %%
fig, axes = plt.subplots(1, 2, figsize=(6.5, 2.4), constrained_layout=True)
for ax, (name, place, distance, density) in zip(axes, judged):
    ax.plot(distance, 1e3 * density, color=BLUE)
    ax.axvline(place, color=ORANGE, lw=1, label="published distance")
    ax.set(title=name, xlabel="distance [pc]", ylabel="median density [mag/kpc]")
axes[0].legend()
plt.show()

# %% [markdown]
# ## Published sight lines
#
# The extinction of the map, with its 68% interval, and a published one along the same
# line, converted from E(B−V) to the band of the map. The scale of either may be off by some
# 15%, so look at the shape too. Distances on one line are not independent: judge the
# farthest that the map is informed of, among those that the reference trusts.

# %%
if os.environ.get("DUSTMAP_LINES"):
    table = Table.read(os.environ["DUSTMAP_LINES"], format="csv")
    table = table[table["sample"] == -1] if "sample" in table.colnames else table
    if "dm_max" in table.colnames:
        trusted = (table["dm"] >= table["dm_min"]) & (table["dm"] <= table["dm_max"])
        table = table[trusted]
    scale = factor("E(B-V)", source_band(dust.band))
    print(f"{dust.band} = {scale:.4g} E(B-V)")
    published = {
        (float(l), float(b)): (
            10 ** (np.array(part["dm"]) / 5 + 1),
            scale * np.array(part["ebv"]),
        )
        for (l, b) in sorted({(row["l"], row["b"]) for row in table})
        for part in [table[(table["l"] == l) & (table["b"] == b)]]
    }
else:
    at = np.arange(50.0, 600.0, 50.0)
    published = {
        (l, 0.0): (at, true_extinction(galactic(np.full(len(at), l), 0 * at, at)))
        for l in (30.0, 200.0)
    }

# %%
across = min(len(published), 4)
down = -(-len(published) // across)
fig, axes = plt.subplots(
    down,
    across,
    figsize=(3.2 * across, 2.4 * down),
    constrained_layout=True,
    squeeze=False,
)
for ax in axes.flat[len(published) :]:
    ax.remove()
for ax, ((l, b), (distance, reference)) in zip(axes.flat, published.items()):
    low, middle, high = dust.query(
        galactic(l, b, distance), integrated=True, mode="percentile", pct=[16, 50, 84]
    ).T
    ax.fill_between(distance, low.value, high.value, color=BLUE, alpha=0.25)
    ax.plot(distance, middle.value, color=BLUE, label="map")
    ax.plot(distance, reference, "o", ms=3, color=ORANGE, label="published")
    ax.set(title=f"l = {l:.5g}°, b = {b:.4g}°", xlabel="distance [pc]", ylabel=f"{dust.band} [mag]")
axes[0, 0].legend()
plt.show()

# %%
for (l, b), (distance, reference) in published.items():
    mean, flags = dust.query(galactic(l, b, distance), integrated=True, return_flags=True)
    std = dust.query(galactic(l, b, distance), integrated=True, mode="std")
    known = np.flatnonzero(flags["inside"] & ~flags["extrapolated"])
    if len(known):
        end = known[-1]
        z = (mean[end].value - reference[end]) / std[end].value
        print(
            f"l = {l:g}, b = {b:g}, {distance[end]:.0f} pc: map {mean[end].value:.2f} ± "
            f"{std[end].value:.2f} mag, published {reference[end]:.2f} mag, z = {z:+.1f}"
        )
