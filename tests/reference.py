"""Slow, dense float64 oracles, written from the formulas and nothing else.

NumPy and loops only: no line here is shared with the package, except that nodes are
read from its functionals.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

S3, S5 = np.sqrt(3.0), np.sqrt(5.0)

# φ, φ' and φ'' of the scaled distance r (Rasmussen & Williams 2006, 4.14–4.17).
PROFILES = {
    "matern12": (lambda r: np.exp(-r), None, None),
    "matern32": (
        lambda r: (1 + S3 * r) * np.exp(-S3 * r),
        lambda r: -3 * r * np.exp(-S3 * r),
        lambda r: (3 * S3 * r - 3) * np.exp(-S3 * r),
    ),
    "matern52": (
        lambda r: (1 + S5 * r + 5 * r**2 / 3) * np.exp(-S5 * r),
        lambda r: -(5 / 3) * (r + S5 * r**2) * np.exp(-S5 * r),
        lambda r: -(5 / 3) * (1 + S5 * r - 5 * r**2) * np.exp(-S5 * r),
    ),
    "squared-exponential": (
        lambda r: np.exp(-(r**2) / 2),
        lambda r: -r * np.exp(-(r**2) / 2),
        lambda r: (r**2 - 1) * np.exp(-(r**2) / 2),
    ),
}


@lru_cache
def _image_shifts(periods: tuple[float, ...], images: tuple[int, ...]) -> np.ndarray:
    counts = [range(-n, n + 1) for n in images]
    return np.array(list(itertools.product(*counts))) * np.array(periods)


@dataclass(frozen=True, kw_only=True)
class Covariance:
    """``σ² φ(|Δ/ℓ|)``; with ``periods`` summed over ±``images`` of a torus per axis."""

    name: str
    lengthscale: tuple[float, ...]
    variance: float = 1.0
    periods: tuple[float, ...] | None = None
    images: tuple[int, ...] = ()

    def __call__(
        self, lag: Sequence[float], left: int | None = None, right: int | None = None
    ) -> float:
        """``Cov(∂_left ρ(x), ∂_right ρ(x'))`` at one displacement ``Δ = x − x'``."""
        lag = np.asarray(lag, dtype=float)
        shifts = np.zeros((1, len(lag)))
        if self.periods is not None:
            shifts = _image_shifts(self.periods, self.images)
        return self.variance * float(self._plain(lag + shifts, left, right).sum())

    def _plain(
        self, lags: np.ndarray, left: int | None, right: int | None
    ) -> np.ndarray:
        value, slope, curvature = PROFILES[self.name]
        scaled = lags / np.array(self.lengthscale)
        r = np.sqrt((scaled**2).sum(axis=1))
        if left is None and right is None:
            return value(r)
        safe = np.where(r > 0, r, 1.0)
        unit = scaled / safe[:, None] / np.array(self.lengthscale)
        if right is None:
            return slope(r) * unit[:, left]
        if left is None:
            return -slope(r) * unit[:, right]
        same = float(left == right) / self.lengthscale[left] ** 2
        # The radial part along the displacement, the rest across it.
        across = np.where(r > 0, slope(safe) / safe, curvature(0.0))
        along = np.where(r > 0, curvature(r) - slope(safe) / safe, 0.0)
        return -(along * unit[:, left] * unit[:, right] + across * same)

    def matrix(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """``k(x_i − y_j)``."""
        return np.array([[self(a - b) for b in np.asarray(y)] for a in np.asarray(x)])


Row = list[tuple[np.ndarray, float, "int | None"]]


def rows_of(functionals) -> list[Row]:
    """Per functional a list of (position, weight, axis of differentiation)."""
    nodes = functionals.nodes()
    rows: list[Row] = [[] for _ in range(nodes.count)]
    for j, row in enumerate(nodes.rows.tolist()):
        axis = -1 if nodes.axes is None else int(nodes.axes[j])
        rows[row].append(
            (
                nodes.points[j].numpy(),
                float(nodes.weights[j]),
                None if axis < 0 else axis,
            )
        )
    return rows


def points_as_rows(points) -> list[Row]:
    """Point values as functionals of one node."""
    return [[(np.asarray(p), 1.0, None)] for p in points]


def functional_covariance(
    covariance: Covariance, left: list[Row], right: list[Row]
) -> np.ndarray:
    """``Σ_j Σ_i w_nj w_mi Cov(∂ρ(x_nj), ∂ρ(x_mi))`` by loops over everything."""
    total = np.zeros((len(left), len(right)))
    for n, a in enumerate(left):
        for m, b in enumerate(right):
            for x, w, i in a:
                for z, v, j in b:
                    total[n, m] += w * v * covariance(x - z, i, j)
    return total


def symmetric_root(K: np.ndarray) -> np.ndarray:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(K)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


def conditional_features(K_nu: np.ndarray, K_uu: np.ndarray) -> np.ndarray:
    """``Φ = K_nu K_uu⁻¹ K_uu^{1/2}``: ε ↦ E[L_n ρ | u = K^{1/2} ε]."""
    return K_nu @ np.linalg.solve(K_uu, symmetric_root(K_uu))


def conditional_covariance(
    K_nn: np.ndarray, K_nu: np.ndarray, K_uu: np.ndarray
) -> np.ndarray:
    """``K_nn − K_nu K_uu⁻¹ K_un``."""
    return K_nn - K_nu @ np.linalg.solve(K_uu, K_nu.T)


def exact_posterior(
    K_nn: np.ndarray,
    K_sn: np.ndarray,
    K_ss: np.ndarray,
    y: np.ndarray,
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of functionals s given ``y = L ρ + N(0, diag noise)``."""
    A = K_nn + np.diag(noise)
    mean = K_sn @ np.linalg.solve(A, y)
    return mean, K_ss - K_sn @ np.linalg.solve(A, K_sn.T)


def log_evidence(K_nn: np.ndarray, y: np.ndarray, noise: np.ndarray) -> float:
    """``log N(y | 0, K_nn + diag noise)``."""
    A = K_nn + np.diag(noise)
    sign, logdet = np.linalg.slogdet(A)
    assert sign > 0
    quadratic = y @ np.linalg.solve(A, y)
    return float(-0.5 * (quadratic + logdet + len(y) * np.log(2 * np.pi)))


def woodbury_posterior(
    Phi: np.ndarray, y: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``m = Λ⁻¹ Φᵀ Σ⁻¹ y`` and ``S = Λ⁻¹`` with ``Λ = I + Φᵀ Σ⁻¹ Φ``.

    By the other side of the Woodbury identity, ``S = I − Φᵀ (ΦΦᵀ + Σ)⁻¹ Φ``, so that
    nothing is shared with an implementation that forms Λ.
    """
    A = Phi @ Phi.T + np.diag(noise)
    gain = np.linalg.solve(A, Phi).T
    return gain @ y, np.eye(Phi.shape[1]) - gain @ Phi
