"""Exported maps continued by another map, with a map of where each value is from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipelines.cubes.cube import Cube
from pipelines.others import NOTHING, OtherMap
from pipelines.products.integrated import integrals_along, last_star
from pipelines.run.folder import Run

# Where values are from: the map, the other one, the other one added to the map.
OWN, OTHER, JOINED = 0.0, 1.0, 2.0


def fill_integrals(
    run: Run,
    other: OtherMap,
    beyond: str,
    directions: np.ndarray,
    edges: np.ndarray,
    arrays: dict[str, np.ndarray],
    factor: float = 1.0,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Integrated extinctions that go on where the map ends.

    As `pipelines.query.filling` has it for single places.

    Parameters
    ----------
    beyond
        ``box`` or ``stars``.
    directions, edges
        Unit vectors ``(n, 3)``, and distances [pc], shape ``(e,)``.
    arrays
        The map's own moments by name, shape ``(n, e)`` [mag in the band of ``factor``
        times the run's].

    Returns
    -------
    The moments, and where they are from, shape ``(n, e)``.
    """
    ends = run.box.exits(directions)
    if beyond == "stars":
        ends = np.minimum(ends, last_star(run, directions))
    alone, ends = ends <= NOTHING, np.maximum(ends, NOTHING)
    own, _ = integrals_along(run, directions, ends[None])
    far = np.broadcast_to(edges, (len(directions), len(edges)))
    added = factor * other.added(directions, ends, far)
    filled = (edges > ends[:, None]) & np.isfinite(added)
    origin = np.where(filled, np.where(alone, OTHER, JOINED)[:, None], OWN)
    found = {}
    for name, values in arrays.items():
        near = factor * own[name]
        if name != "std" and "p50" in arrays:
            # Of whole rays, which do not fall.
            before = np.where(edges <= ends[:, None], values, np.nan)
            near = np.fmax(near, np.fmax.reduce(before, axis=1, keepdims=True))
        near[alone] = np.nan if name == "std" else 0.0
        whole = near + (0.0 if name == "std" else added)
        found[name] = np.where(filled, whole, values).astype(np.float32)
    return found, origin.astype(np.float32)


def fill_cube(cube: Cube, other: OtherMap, factor: float = 1.0) -> Cube:
    """Densities of the other map in cells that no sight line crosses, with ``filled``.

    That array is 1 there, else 0. The std is not known where they are.
    """

    def fill(level: Cube) -> Cube:
        z, y, x = np.meshgrid(level.z, level.y, level.x, indexing="ij")
        hole = level.arrays["support"] <= 0
        points = np.stack([x, y, z], axis=-1)[hole]
        values = np.full(len(points), np.nan)
        if len(points):
            values = factor * other.density(points)
        filled = np.zeros(hole.shape, dtype=np.float32)
        filled[hole] = np.isfinite(values)
        arrays = {name: own.copy() for name, own in level.arrays.items()}
        for name in arrays.keys() - {"support"}:
            put = np.nan if name == "std" else values
            own = arrays[name][hole]
            arrays[name][hole] = np.where(np.isfinite(values), put, own)
        return replace(level, arrays={**arrays, "filled": filled})

    return cube.each(fill)
