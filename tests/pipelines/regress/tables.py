"""Random tables of many kinds, for a regression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Function = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
# Rows to fit and as many to test.
ROWS = 1_500


def waves(random: np.random.Generator, x: np.ndarray, scale: float) -> np.ndarray:
    """A smooth function of all inputs: sines with wavelengths of 2π ``scale``."""
    k = random.normal(size=(40, x.shape[1])) / scale
    phase = random.uniform(0, 2 * np.pi, 40)
    return np.sqrt(2 / 40) * np.cos(x @ k.T + phase).sum(axis=1)


def brownian(random: np.random.Generator, t: np.ndarray) -> np.ndarray:
    """A Brownian path at the times ``t``."""
    order = np.argsort(t)
    steps = random.normal(size=len(t)) * np.sqrt(np.diff(t[order], prepend=t.min()))
    path = np.empty(len(t))
    path[order] = steps.cumsum()
    return path


def ages(random, n):
    age, feh = random.uniform(0, 10, n), random.uniform(0, 5, n)
    return np.c_[age, feh], np.sin(age) + 0.3 * feh + random.normal(0, 0.1, n)


def smooth_in_four(random, n):
    x = random.normal(size=(n, 4))
    return x, waves(random, x, 2.5) + random.normal(0, 0.1, n)


def friedman(random, n):
    x = random.uniform(size=(n, 5))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return x, y + 10 * x[:, 3] + 5 * x[:, 4] + random.normal(0, 1, n)


def brownian_path(random, n):
    t = random.uniform(0, 1, n)
    return t[:, None], brownian(random, t) + random.normal(0, 0.03, n)


def branin(random, n):
    x = random.uniform((-5, 0), (10, 15), (n, 2))
    u, v = x.T
    bowl = (v - 5.1 * u**2 / (4 * np.pi**2) + 5 * u / np.pi - 6) ** 2
    return x, bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(u) + 10


def quiet_curve(random, n):
    x = random.uniform(-10, 10, (n, 1))
    return x, 1e-3 * np.sinc(x[:, 0] + random.normal())


def groups(random, n):
    x = np.c_[random.uniform(0, 1, n), random.integers(0, 5, n)]
    offset = random.normal(size=5)[x[:, 1].astype(int)]
    return x, np.sin(12 * x[:, 0] + offset) + offset + random.normal(0, 0.1, n)


def repeated_inputs(random, n):
    places = random.uniform(-2, 2, (n // 10, 3))
    x = places[random.integers(0, len(places), n)]
    return x, waves(random, x, 1.5) + random.normal(0, 0.1, n)


def heavy_noise(random, n):
    x = random.uniform(-2, 2, (n, 2))
    return x, waves(random, x, 0.8) + 0.1 * random.standard_t(2.5, n)


def line(random, n):
    x = random.normal((0, 50, -3), (1, 10, 0.01), (n, 3))
    return x, x @ [2, 0.1, 100] + random.normal(0, 1, n)


TABLES: dict[str, Function] = {
    each.__name__: each
    for each in (
        *(ages, smooth_in_four, friedman, brownian_path, branin, quiet_curve),
        *(groups, repeated_inputs, heavy_noise, line),
    )
}
NOISE_FREE = ("branin", "quiet_curve")


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (2 N, D) and target (2 N,) of this name, the same at every call.

    The first half of the rows is to be fitted.
    """
    number = list(TABLES).index(name)
    return TABLES[name](np.random.default_rng((34, number)), 2 * ROWS)
