"""A second map on the grid of a first, and how well the two agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from astropy import units as u

from pipelines.export.cube import Cube
from pipelines.figures.box import array_axis
from pipelines.figures.views import density_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Numbers about pairs of values of two maps.

    ``correlation`` and ``slope`` are of the values themselves (slope of the first on
    the second, through their means); ``offset`` and ``rms`` are of first minus second,
    in their unit.
    """

    count: int
    correlation: float
    slope: float
    offset: float
    rms: float

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> Agreement:
        """Of all pairs of finite values.

        Raises
        ------
        ValueError
            If there are fewer than two.
        """
        known = np.isfinite(first) & np.isfinite(second)
        a, b = (np.asarray(v, dtype=np.float64)[known] for v in (first, second))
        if len(a) < 2:
            raise ValueError(
                f"the maps have {len(a)} places in common: expected two or more"
            )
        da, db = a - a.mean(), b - b.mean()
        across, of_b = float(da @ db), float(db @ db)
        spread = float(np.sqrt((da @ da) * of_b))
        return cls(
            count=len(a),
            correlation=across / spread if spread else float("nan"),
            slope=across / of_b if of_b else float("nan"),
            offset=float((a - b).mean()),
            rms=float(np.sqrt(((a - b) ** 2).mean())),
        )


def shared_height(cube: Cube, other: Cube) -> tuple[float, float]:
    """Lowest and highest z of the first one's cell centres within the other's [pc].

    Raises
    ------
    ValueError
        If there are fewer than two.
    """
    within = cube.z[(cube.z >= other.z[0]) & (cube.z <= other.z[-1])]
    if len(within) < 2:
        raise ValueError(
            f"the maps have {len(within)} planes of cells in common: one spans "
            f"{cube.z[0]:g} to {cube.z[-1]:g} pc in z, the other {other.z[0]:g} to "
            f"{other.z[-1]:g} pc"
        )
    return float(within[0]), float(within[-1])


def regridded(other: Cube, cube: Cube, factor: float = 1.0) -> Cube:
    """The density of another cube, times ``factor``, at the cells of a first.

    Trilinear between cell centres and NaN beyond; in the first one's unit. Where the
    other's cells are finer their mean over a cell of the first is taken before, so that
    what the first cannot resolve is no difference.
    """
    name = density_name(other)
    to_unit = u.Unit(other.unit).to(u.Unit(cube.unit)) * factor
    merged = [
        max(1, round(h / g)) for h, g in zip(cube.spacing, other.spacing, strict=True)
    ]
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    places = np.stack([x, y, z], axis=-1)
    values = _running_means(other, name, merged).sample("density", places) * to_unit
    return Cube(
        x=cube.x,
        y=cube.y,
        z=cube.z,
        arrays={"density": values},
        unit=cube.unit,
        meta=other.meta,
    )


def _running_means(cube: Cube, name: str, merged: list[int]) -> Cube:
    """Means over ``merged`` cells per axis, each at the centre of what it averages."""
    axes = {}
    values = np.asarray(cube.arrays[name], dtype=np.float64)
    for wanted, axis in zip(merged, "xyz", strict=True):
        centres = getattr(cube, axis)
        count = min(wanted, len(centres) - 1)
        windows = np.lib.stride_tricks.sliding_window_view(
            values, count, axis=array_axis(axis)
        )
        values = windows.mean(axis=-1)
        axes[axis] = np.convolve(centres, np.full(count, 1 / count), mode="valid")
    return Cube(**axes, arrays={"density": values}, unit=cube.unit)
