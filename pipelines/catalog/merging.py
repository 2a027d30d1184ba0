r"""Stars of one cell of the sky and of distance, merged into one pseudo-observation.

A cell is a HEALPix pixel (NESTED, Galactic coordinates) and a bin of observed distance.
In a cell smaller than a voxel the extinction is linear in the place to grid accuracy,
``y_i = A(d̄) + ρ (d_i − d̄ − δ_i) + u_i + η_i``, with independent errors of extinction
``η_i ~ N(0, σ_i²)`` and distance ``δ_i ~ N(0, s_i²)``, and unresolved structure
``u_i ~ N(0, τ²)``. With equal weights for extinctions, distances and directions the
linear terms cancel:

- ``w_i ∝ 1 / (σ_i² + g² s_i² + τ²)``, inverse variances; ``g`` is the median extinction
  of the cell over its median distance, the mean density along the sight line,
- ``ȳ = Σ w_i y_i``, ``d̄ = Σ w_i d_i``, the direction that of ``Σ w_i ŝ_i``,
- ``extinction_error² = Σ w_i² (σ_i² + τ²)``,
- ``distance_error² = Σ w_i (s_i² + (d_i − d̄)²)``: the range averaged in ``ȳ``,
- ``mean_distance_error² = Σ w_i² s_i²``: the error of ``d̄`` itself.

``τ²`` is the scatter in excess of ``σ_i² + g² s_i²``, from unresolved structure and the
gradient over the cell, by moments (DerSimonian & Laird 1986, Controlled Clinical Trials
7, 177): ``τ² = (Q − n + 1) / C``, ``Q = Σ v_i⁻¹ (y_i − ȳ)²``, ``C = Σ v_i⁻¹ − Σ v_i⁻² /
Σ v_i⁻¹``. For few members it shrinks towards that of the cells of the same distance in
the pixel two orders up, which counts as `_PRIOR_FREEDOM` degrees of freedom. It is
never negative.

A member further from the cell's median than five times ``(σ_i² + g² s_i² + (1.48
MAD)²)^½`` remains a separate observation, for the fit to judge; so does each of two
discrepant members of a pair. Single stars remain unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantities import parsecs

MERGED_COLUMNS = ("mean_distance_error", "members")
_PRIOR_FREEDOM = 8.0
_OUTLYING = 5.0
_PARENT_ORDERS = 2
_MAD = 1.4826
_DEEPEST = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """HEALPix pixels of ``nside`` times bins of distance, ``width`` [pc] wide.

    Raises
    ------
    ValueError
        If ``nside`` is not a power of two or too large, or ``width`` not positive.
    """

    nside: int
    width: float

    def __post_init__(self) -> None:
        if not 0 < self.nside <= 2**_DEEPEST or self.nside & (self.nside - 1):
            raise ValueError(
                f"nside must be a power of two up to 2^{_DEEPEST}, got {self.nside}"
            )
        if not 0 < self.width < np.inf:
            raise ValueError(f"the width of bins must be positive, got {self.width}")

    @property
    def order(self) -> int:
        """HEALPix order of the pixels."""
        return self.nside.bit_length() - 1

    @property
    def coarsest(self) -> int:
        """HEALPix order of the pixels that must not be divided for merging."""
        return max(self.order - _PARENT_ORDERS, 0)

    def __str__(self) -> str:
        """Return the cells in the form of the option ``--merge``."""
        return f"{self.nside},{self.width:.6g}pc"


def parse_cells(text: str) -> Cells:
    """Parse ``NSIDE,WIDTH``, where WIDTH is a length like ``25pc``.

    Raises
    ------
    InputError
        If the form differs, or NSIDE is not a power of two.
    """
    nside, _, width = text.partition(",")
    try:
        if width.replace(".", "").strip().isdigit():
            raise ValueError("the width of bins needs a unit")
        return Cells(nside=int(nside), width=parsecs(width))
    except ValueError as error:
        raise InputError(
            f"--merge {text}: expected NSIDE,WIDTH, e.g. 256,25pc: {error}"
        ) from error


def merge_rows(
    columns: Mapping[str, np.ndarray], cells: Cells
) -> tuple[dict[str, np.ndarray], int]:
    """Merge the stars of every cell; see the module.

    Parameters
    ----------
    columns
        Canonical columns of shape ``(n,)``, of whole pixels at order
        `Cells.coarsest`. Others, including identifiers, are dropped.

    Returns
    -------
    The columns of the ``m`` pseudo-observations in the order of the cells, with
    ``members``, the number of stars in each, and, if distances have errors,
    ``mean_distance_error`` [pc]; and the number of outlying members.
    """
    layer = np.floor(columns["distance"] / cells.width).astype(np.int64)
    place = (columns["l"], columns["b"])
    pixel = healpy.ang2pix(cells.nside, *place, nest=True, lonlat=True)
    stars = _sorted({**columns, "pixel": pixel, "layer": layer}, (layer, pixel))
    groups = _Groups.of(stars["pixel"], stars["layer"])
    stars["variance"] = _variance(stars, groups)
    outlying = _outlying(stars["extinction"], stars["variance"], groups)
    # Each outlying star is a separate group.
    stars["alone"] = np.where(outlying, 1 + np.arange(len(outlying)), 0)
    stars = _sorted(stars, (stars["alone"], groups.label))
    groups = _Groups.of(stars["pixel"], stars["layer"], stars["alone"])
    stars["wide"] = stars["pixel"] >> 2 * (cells.order - cells.coarsest)
    return _means(stars, groups, _excess(stars, groups)), int(outlying.sum())


def _sorted(
    columns: Mapping[str, np.ndarray], keys: tuple[np.ndarray, ...]
) -> dict[str, np.ndarray]:
    """Return columns sorted by ``keys``, the last one first."""
    order = np.lexsort(keys)
    return {name: column[order] for name, column in columns.items()}


@dataclass(frozen=True, slots=True)
class _Groups:
    """Runs of rows of one group: group of each row, first rows, sizes."""

    label: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, *keys: np.ndarray) -> _Groups:
        """Find runs of rows with equal keys, shape ``(n,)``."""
        new = np.ones(len(keys[0]), dtype=bool)
        new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(new))
        return cls(np.cumsum(new) - 1, starts, sizes)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self.starts, axis=0)

    def median(self, values: np.ndarray) -> np.ndarray:
        ordered = values[np.lexsort((values, self.label))]
        low = ordered[self.starts + (self.sizes - 1) // 2]
        return (low + ordered[self.starts + self.sizes // 2]) / 2


def _variance(stars: Mapping[str, np.ndarray], groups: _Groups) -> np.ndarray:
    """Return ``σ_i² + g² s_i²`` [mag²]."""
    variance = stars["extinction_error"] ** 2
    if "distance_error" not in stars:
        return variance
    extinction = np.maximum(groups.median(stars["extinction"]), 0.0)
    density = extinction / groups.median(stars["distance"])
    return variance + (density[groups.label] * stars["distance_error"]) ** 2


def _outlying(y: np.ndarray, variance: np.ndarray, groups: _Groups) -> np.ndarray:
    """Return a mask of members too far from their cell's median, shape ``(n,)``."""
    label = groups.label
    away = np.abs(y - groups.median(y)[label])
    scale = _MAD * groups.median(away)
    # Two members are always at half their difference from the median.
    pair = groups.sizes[label] == 2
    both = groups.sum(variance)[label]
    limit = np.where(pair, both / 4, variance + scale[label] ** 2)
    return (away > _OUTLYING * np.sqrt(limit)) & (groups.sizes[label] > 1)


def _excess(stars: Mapping[str, np.ndarray], groups: _Groups) -> np.ndarray:
    """Return ``τ²`` [mag²] of each row's cell, 0 for single stars, shape ``(n,)``.

    The neighbourhood is all stars of one ``wide`` pixel and layer.
    """
    y, weight = stars["extinction"], 1.0 / stars["variance"]
    total = groups.sum(weight)
    mean = groups.sum(weight * y) / total
    scatter = groups.sum(weight * (y - mean[groups.label]) ** 2)
    freedom = groups.sizes - 1
    beyond = scatter - freedom
    scale = np.where(freedom > 0, total - groups.sum(weight**2) / total, 0.0)
    wide = np.stack([stars[key][groups.starts] for key in ("wide", "layer")])
    near = np.unique(wide, axis=1, return_inverse=True)[1].reshape(-1)
    pooled = _ratio(np.bincount(near, beyond), np.bincount(near, scale))
    prior = np.maximum(pooled, 0.0)[near]
    own = _ratio(beyond, scale)
    drawn = (freedom * own + _PRIOR_FREEDOM * prior) / (freedom + _PRIOR_FREEDOM)
    return np.where(freedom > 0, np.maximum(drawn, 0.0), 0.0)[groups.label]


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros(len(a)), where=b > 0)


def _means(
    stars: Mapping[str, np.ndarray], groups: _Groups, excess: np.ndarray
) -> dict[str, np.ndarray]:
    weight = 1.0 / (stars["variance"] + excess)
    share = weight / groups.sum(weight)[groups.label]
    distance = groups.sum(share * stars["distance"])
    towards = unit_vectors(stars["l"], stars["b"])
    x, y, z = groups.sum(share[:, None] * towards).T
    variance = stars["extinction_error"] ** 2 + excess
    merged = {
        "l": np.mod(np.rad2deg(np.arctan2(y, x)), 360.0),
        "b": np.rad2deg(np.arctan2(z, np.hypot(x, y))),
        "distance": distance,
        "extinction": groups.sum(share * stars["extinction"]),
        "extinction_error": np.sqrt(groups.sum(share**2 * variance)),
    }
    if "distance_error" in stars:
        error = stars["distance_error"]
        away = stars["distance"] - distance[groups.label]
        merged["distance_error"] = np.sqrt(groups.sum(share * (error**2 + away**2)))
        merged["mean_distance_error"] = np.sqrt(groups.sum((share * error) ** 2))
    return {**merged, "members": groups.sizes.astype(np.int64)}
