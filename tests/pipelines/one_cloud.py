"""A field known in closed form: even dust and one Gaussian cloud, off every axis."""

from __future__ import annotations

import numpy as np
from scipy.special import erf

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

CENTRE = np.array([420.0, 140.0, -70.0])
WIDTH = 70.0
PEAK, EVEN = 0.02, 5e-4
BOX = ((-350.0, 700.0), (-280.0, 350.0), (-210.0, 210.0))
ERROR = 0.02


def density(points: np.ndarray) -> np.ndarray:
    """Density [mag/pc] at points [pc], shape (..., 3)."""
    square = ((points - CENTRE) ** 2).sum(axis=-1)
    return EVEN + PEAK * np.exp(-square / (2 * WIDTH**2))


def extinction(ends: np.ndarray) -> np.ndarray:
    """Integral of the density from the origin to ``ends`` [pc], shape (n, 3)."""
    distance = np.linalg.norm(ends, axis=1)
    along = ends @ CENTRE / distance
    beside = CENTRE @ CENTRE - along**2
    root = np.sqrt(2) * WIDTH
    length = (
        WIDTH
        * np.sqrt(np.pi / 2)
        * (erf((distance - along) / root) + erf(along / root))
    )
    return EVEN * distance + PEAK * np.exp(-beside / root**2) * length


def catalogue(
    count: int, seed: int = 5, *, scale: float = 1.0, dust: float = 1.0
) -> Stars:
    """Stars evenly in the box; lengths times ``scale``, extinctions times ``dust``."""
    rng = np.random.default_rng(seed)
    lower, upper = np.array(BOX).T
    ends = rng.uniform(lower, upper, size=(count, 3))
    noise = rng.normal(scale=ERROR, size=count)
    return at(ends, (extinction(ends) + noise) * dust, ERROR * dust, scale=scale)


def at(
    ends: np.ndarray, values: np.ndarray, error: float, *, scale: float = 1.0
) -> Stars:
    """A catalogue of stars at these places [pc], with these extinctions [mag]."""
    distance = np.linalg.norm(ends, axis=1)
    return Stars(
        source_id=np.arange(len(ends)) + 10**12,
        l=np.degrees(np.arctan2(ends[:, 1], ends[:, 0])) % 360,
        b=np.degrees(np.arcsin(ends[:, 2] / distance)),
        distance=distance * scale,
        extinction=np.asarray(values, dtype=np.float64),
        extinction_error=np.full(len(ends), error),
        meta={"made": "in a test"},
    )


def settings(scale: float = 1.0, dust: float = 1.0, **inference) -> dict:
    """A Gaussian fit's configuration with every scale given: nothing is searched for.

    Without outliers its answer is that of one linear solve.
    """
    box = {
        axis: [low * scale, high * scale]
        for axis, (low, high) in zip("xyz", BOX, strict=True)
    }
    return {
        "box": {**box, "spacing": 70.0 * scale},
        "prior": {
            "lengthscale": 140.0 * scale,
            "std": 0.005 * dust / scale,
            "mean": "constant",
            "mean_density": EVEN * dust / scale,
        },
        "model": {"density": "gaussian", "outliers": False, "common_noise": 0.0},
        "inference": {"samples": 24, **inference},
    }


def positive_settings(**inference) -> dict:
    """The same for a lognormal density, by the map alone, with weights for outliers."""
    plain = settings(**{"samples": 16, **inference})
    plain["prior"]["std"] = 1.5
    plain["model"] = {"common_noise": 0.0, "degrees": 8.0, "residual": False}
    return plain


def directions(count: int, seed: int = 2) -> np.ndarray:
    """Unit vectors all over the sky."""
    rng = np.random.default_rng(seed)
    sine = rng.uniform(-1, 1, count)
    return unit_vectors(rng.uniform(0, 360, count), np.degrees(np.arcsin(sine)))
