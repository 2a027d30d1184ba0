"""Development sets: stars to fit, stars held out, and the truth where it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import healpy
import numpy as np
from astropy.table import Table
from scipy.spatial import KDTree

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

_REACH, _HOT_REACH, _FAR = 5000.0, 1500.0, 3000.0
# A_V over E(BP-RP), and what counts as one place [deg] [relative].
_VISUAL_PER_COLOUR, _SAME_ANGLE, _SAME_DISTANCE = 2.3, 0.12, 0.2
# Held-out part of the clusters, and columns with bounds, with the ends of their names.
_SHARE, _BOUNDED = 0.2, (("dist", "_pc"), ("av", ""))
_CLUSTERS = (
    *("hunt2024", "almeida2023", "cantat2020", "cavallo2024", "dias2021"),
    *("kharchenko2013", "li2025"),
)
# Of the density in the Ananke sample, and its noise; see the folder's README.
_MASS_PER_EXTINCTION, _ANANKE_NOISE = 0.20022, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Development:
    """One set, split.

    Parameters
    ----------
    train
        Stars to fit.
    test
        Held-out stars where a prediction is judged: at their true places if these are
        known.
    truth
        Noise-free ``extinction`` [mag] and ``density`` [mag/pc] of ``test``; None where
        only observed extinctions are known.
    settings
        What a user has to give for this set.
    shells
        Distances [pc] between which stars are judged apart, too.
    cells
        Centres [pc] of cells around the Sun, and their true mean densities [mag/pc].
    """

    train: Stars
    test: Stars
    truth: dict[str, np.ndarray] | None
    settings: tuple[str, ...] = ()
    shells: tuple[float, ...] = ()
    cells: tuple[np.ndarray, np.ndarray] | None = None

    def first(self, train: int, test: int) -> Development:
        """Return the first stars of both kinds, for a smoke run."""
        return self._of(np.arange(len(self.train))[:train], np.arange(test))

    def within(self, distance: float) -> Development:
        """Return the stars nearer than ``distance`` [pc]."""
        kept = [stars.distance < distance for stars in (self.train, self.test)]
        return self._of(*map(np.flatnonzero, kept))

    def _of(self, train: np.ndarray, test: np.ndarray) -> Development:
        test = test[test < len(self.test)]
        truth = self.truth and {key: v[test] for key, v in self.truth.items()}
        return replace(
            self,
            train=self.train.select(train),
            test=self.test.select(test),
            truth=truth,
        )


def near(data: Path) -> Development:
    """A simulated sky with fine structure near the Sun, where most stars are."""
    return replace(galaxy(data, name="near_dev"), shells=(110.0, 400.0))


def galaxy(
    data: Path, *, name: str, first: int | None = None, density: float = 1.0
) -> Development:
    """A simulated sky with its own split; distance errors only where there are any.

    ``first`` limits the stars to fit; ``density`` is the unit of the true density
    [mag/pc].
    """
    with np.load(data / f"{name}.npz") as stored:
        column = {key: np.asarray(stored[key], np.float64) for key in stored.files}
    if first is not None:
        test = column["is_test"] > 0
        kept = test | (np.cumsum(~test) <= first)
        column = {k: v[kept] for k, v in column.items() if len(v) == len(kept)}
    error = None if name.endswith(("clean", "near_dev")) else column["e_dist_pc"]
    observed = Stars(
        l=column["l"],
        b=column["b"],
        distance=column["dist_pc"],
        distance_error=error,
        extinction=column["av"],
        extinction_error=column["e_av"],
    )
    distance = column.get("distance_true", column["dist_pc"])
    true = Stars(l=column["l"], b=column["b"], distance=distance)
    truth = {
        "extinction": column["av_true"],
        "density": density * column["density_true"],
    }
    part = _split(observed, true, column["is_test"] > 0, truth)
    if "density_grid" not in column:
        return part
    grid = column["density_grid"]
    halves = [
        half * (2 * np.arange(count) + 1 - count) / count
        for half, count in zip(column["density_grid_half_size"], grid.shape)
    ]
    centres = np.stack(np.meshgrid(*halves, indexing="ij"), axis=-1).reshape(-1, 3)
    return replace(part, cells=(centres, grid.ravel()))


def semi_synthetic(data: Path) -> Development:
    """A real dust field, stars at exact distances."""
    with np.load(data / "semi_synthetic_75k.npz") as stored:
        column = {key: np.asarray(stored[key], np.float64) for key in stored.files}
    stars = Stars(
        l=column["l"],
        b=column["b"],
        distance=1e3 * column["dist_kpc"],
        extinction=column["av_obs"],
        extinction_error=column["av_sigma"],
    )
    density = column["rho_true_mag_per_kpc"] / 1e3
    truth = {"extinction": column["av_true"], "density": density}
    near = stars.distance < _REACH
    test = np.arange(len(stars)) % 5 == 1
    truth = {key: values[near] for key, values in truth.items()}
    return _split(stars.select(near), stars.select(near), test[near], truth)


def real(data: Path, *, name: str) -> Development:
    """Real stars or clusters; errors are half the 16–84% ranges, rows of none go."""
    table = Table.read(data / f"{name}.csv.gz", format="ascii.csv")

    def column(key: str) -> np.ndarray:
        return np.asarray(table[key], np.float64)

    stars = Stars(
        l=column("l"),
        b=column("b"),
        distance=column("dist_pc"),
        distance_error=(column("dist_hi_pc") - column("dist_lo_pc")) / 2,
        extinction=column("av"),
        extinction_error=(column("av_hi") - column("av_lo")) / 2,
    )
    assert stars.extinction_error is not None
    assert stars.distance_error is not None
    sound = (stars.extinction_error > 0) & (stars.distance_error > 0)
    sound &= stars.distance < _REACH
    test = np.arange(len(stars)) % 5 == 1
    return _split(stars.select(sound), stars.select(sound), test[sound], None)


def hot_stars(
    data: Path, *, reach: float = _HOT_REACH, shells: bool = False
) -> Development:
    """Real Gaia hot stars within a distance: E(BP−RP); a fifth of the cells is held.

    Held-out stars fill HEALPix cells (NSIDE 256), so that none stands beside one to
    fit; with ``shells`` they fill such cells in 20% of distance.
    """
    table = Table.read(data / "gaia_ob.csv.gz", format="ascii.csv")

    def column(key: str) -> np.ndarray:
        return np.asarray(table[key], np.float64)

    stars = Stars(
        l=column("l"),
        b=column("b"),
        distance=column("dist_pc"),
        distance_error=column("e_dist_pc"),
        extinction=column("e_bp_rp"),
        extinction_error=column("sigma_e_bp_rp"),
    )
    stars = stars.select(stars.distance < reach)
    cells = healpy.ang2pix(256, stars.l, stars.b, nest=True, lonlat=True)
    if shells:
        cells = stars.places()
    order = np.random.default_rng(0).permutation(healpy.nside2npix(256))
    held = order[cells] % 5 == 1
    return _split(stars, stars, held, None)


def surveys(
    data: Path, *, clusters: tuple[str, ...], stars: bool = False, named: bool = True
) -> Development:
    """Real clusters of several catalogues, and Gaia stars as another one.

    A fifth of Hunt's clusters within 3 kpc is held out, with all rows within 0.12 deg
    and 20% in distance. If not ``named``, surveys are joined as if they were one.
    """
    table = Table.read(data / "cluster_surveys.csv.gz", format="ascii.csv")
    hot = Table.read(data / "gaia_ob.csv.gz", format="ascii.csv")
    if not stars:
        hot = hot[:0]

    def joined(ours: str | np.ndarray, theirs: str, factor: float = 1.0) -> np.ndarray:
        own = table[ours] if isinstance(ours, str) else ours
        return np.concatenate([own, factor * np.asarray(hot[theirs])]).astype(float)

    survey = np.concatenate([np.asarray(table["survey"]), ["gaia"] * len(hot)])
    spreads = [(table[f"{n}_hi{u}"] - table[f"{n}_lo{u}"]) / 2 for n, u in _BOUNDED]
    rows = Stars(
        survey=survey.astype(str),
        l=joined("l", "l"),
        b=joined("b", "b"),
        distance=joined("dist_pc", "dist_pc"),
        distance_error=joined(np.asarray(spreads[0]), "e_dist_pc"),
        extinction=joined("av", "e_bp_rp", _VISUAL_PER_COLOUR),
        extinction_error=joined(
            np.asarray(spreads[1]), "sigma_e_bp_rp", _VISUAL_PER_COLOUR
        ),
    )
    assert rows.extinction_error is not None
    assert rows.distance_error is not None
    sound = (rows.distance < _FAR) & (rows.extinction_error > 0)
    sound &= (rows.distance_error > 0) & np.isin(survey, [*clusters, "gaia"])
    rows, survey = rows.select(sound), survey[sound]
    hunt = np.random.default_rng(0).random(len(rows)) < _SHARE
    held = hunt & (survey == "hunt2024")
    place = np.column_stack(
        [
            unit_vectors(rows.l, rows.b) / np.radians(_SAME_ANGLE),
            np.log(rows.distance) / np.log1p(_SAME_DISTANCE),
        ]
    )
    apart = KDTree(place[held]).query(place)[0] > 1
    train = rows.select(apart)
    if not named:
        train = replace(train, survey=None)
    return Development(train=train, test=rows.select(held), truth=None)


def ananke(data: Path) -> Development:
    """The sample of the HIP-GP paper with the paper's noise, a fifth held out."""
    table = Table.read(data / "ananke_5k.csv.gz", format="ascii.csv")
    x, y, z = (1e3 * np.asarray(table[axis], np.float64) for axis in "xyz")
    extinction = np.asarray(table["e"], np.float64)
    generator = np.random.default_rng(0)
    sigma = _ANANKE_NOISE * generator.uniform(0.5, 1.5, len(extinction))
    stars = Stars(
        l=np.degrees(np.arctan2(y, x)) % 360,
        b=np.degrees(np.arctan2(z, np.hypot(x, y))),
        distance=np.sqrt(x**2 + y**2 + z**2),
        extinction=extinction + sigma * generator.standard_normal(len(sigma)),
        extinction_error=sigma,
    )
    density = np.asarray(table["density"], np.float64) / _MASS_PER_EXTINCTION / 1e3
    truth = {"extinction": extinction, "density": density}
    test = np.arange(len(stars)) % 5 == 1
    box = ("box.x=[-250,250]", "box.y=[-250,250]", "box.z=[-50,50]")
    return _split(stars, stars, test, truth, settings=box)


def _split(
    observed: Stars,
    places: Stars,
    test: np.ndarray,
    truth: dict[str, np.ndarray] | None,
    settings: tuple[str, ...] = (),
) -> Development:
    """Judged at ``places`` if there is a truth, else where they were observed."""
    held = {} if truth is None else {key: v[test] for key, v in truth.items()}
    return Development(
        train=observed.select(~test),
        test=places.select(test),
        truth=held or None,
        settings=settings,
    )


SETS: dict[str, Callable[[Path], Development]] = {
    "galaxy_dev_clean": partial(galaxy, name="galaxy_dev_clean"),
    "galaxy_dev_defects": partial(galaxy, name="galaxy_dev_defects"),
    "galaxy_dev_million": partial(
        galaxy, name="galaxy_dev_million", first=48_000, density=1e-3
    ),
    "semi_synthetic_75k": semi_synthetic,
    "stars_av": partial(real, name="stars_av"),
    "clusters_hunt2023": partial(real, name="clusters_hunt2023"),
    "ananke_5k": ananke,
    "near_dev": near,
    "gaia_ob": hot_stars,
    "gaia_ob_3kpc": partial(hot_stars, reach=_FAR, shells=True),
    "hunt_alone": partial(surveys, clusters=_CLUSTERS[:1]),
    "seven_surveys": partial(surveys, clusters=_CLUSTERS),
    "seven_and_gaia": partial(surveys, clusters=_CLUSTERS, stars=True),
    "seven_and_gaia_joined": partial(
        surveys, clusters=_CLUSTERS, stars=True, named=False
    ),
}
