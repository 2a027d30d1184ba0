"""From directions to places on paper and back; Galactic longitude grows to the left."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from pipelines.geometry import unit_vectors


class Projection(ABC):
    """A map of the sky; ``l``, ``b`` [deg], places in units of the panel."""

    # Half the panel's width and height.
    half: tuple[float, float]

    @abstractmethod
    def project(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        """Place of a direction; NaN where it is not shown."""

    @abstractmethod
    def unproject(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Direction of a place; NaN beyond the rim."""

    @property
    def round(self) -> bool:
        """Whether the rim is an ellipse, or else the panel's own edge."""
        return True

    def pixels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres of ``count`` pixels across the panel, and as many as that gives up.

        Places that the rim cuts are moved onto it, to be clipped there.
        """
        width, height = self.half
        rows = round(count * height / width)
        across = ((np.arange(count) + 0.5) / count * 2 - 1) * width
        up = ((np.arange(rows) + 0.5) / rows * 2 - 1) * height
        x, y = np.meshgrid(across, up)
        if not self.round:
            return x, y
        radius = np.hypot(x / width, y / height)
        shrink = np.minimum(1.0, (1 - 1e-9) / np.maximum(radius, 1e-9))
        touched = radius < 1 + 4.0 / count
        return np.where(touched, x * shrink, np.nan), np.where(
            touched, y * shrink, np.nan
        )


class Mollweide(Projection):
    """The whole sky, equal areas: an ellipse of half-axes 2 and 1 around l = 0."""

    half = (2.0, 1.0)

    def project(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        # The latitude grows steadily with the auxiliary angle: a table inverts it.
        table = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 4001))
        height = np.interp(b, _latitude(table), table)
        turned = (np.asarray(l) + 180.0) % 360.0 - 180.0
        return -turned / 90.0 * np.sqrt(1 - height**2), height

    def unproject(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half_width = np.maximum(np.sqrt(1 - y**2), np.finfo(float).tiny)
        return -90.0 * x / half_width % 360.0, _latitude(y)


def _latitude(height: np.ndarray) -> np.ndarray:
    theta = np.arcsin(height)
    sine = (2 * theta + np.sin(2 * theta)) / np.pi
    return np.rad2deg(np.arcsin(np.clip(sine, -1, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Centred(Projection):
    """A projection around the direction ``l``, ``b`` [deg], north upwards."""

    l: float = 0.0  # noqa: E741
    b: float = 0.0

    def _axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit vectors towards the centre, to growing longitude, and to the north."""
        turned = math.radians(self.l)
        centre = unit_vectors(np.array(self.l), np.array(self.b))
        east = np.array([-math.sin(turned), math.cos(turned), 0.0])
        return centre, east, np.cross(centre, east)

    def _components(
        self,
        l: np.ndarray,  # noqa: E741
        b: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        towards = unit_vectors(np.asarray(l), np.asarray(b))
        centre, east, north = self._axes()
        return towards @ centre, towards @ east, towards @ north

    def _direction(
        self, ahead: np.ndarray, left: np.ndarray, up: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        centre, east, north = self._axes()
        vector = ahead[..., None] * centre + left[..., None] * east
        vector = vector + up[..., None] * north
        longitude = np.rad2deg(np.arctan2(vector[..., 1], vector[..., 0])) % 360.0
        flat = np.hypot(vector[..., 0], vector[..., 1])
        return longitude, np.rad2deg(np.arctan2(vector[..., 2], flat))


@dataclass(frozen=True, slots=True, kw_only=True)
class Orthographic(_Centred):
    """Half of the sky as a globe, seen from inside: a disc of radius 1."""

    @property
    def half(self) -> tuple[float, float]:
        return 1.0, 1.0

    def project(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        ahead, left, up = self._components(l, b)
        shown = ahead >= 0
        return np.where(shown, -left, np.nan), np.where(shown, up, np.nan)

    def unproject(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ahead = np.sqrt(np.maximum(1 - x**2 - y**2, 0.0))
        return self._direction(ahead, -x, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gnomonic(_Centred):
    """A field of view on its tangent plane, ``field`` [deg] across, below 180.

    Great circles are straight lines; a place is in units of the tangent of the angle
    from the centre.
    """

    field: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.field < 180:
            raise ValueError(
                f"a field on a tangent plane is above 0 and below 180 deg across, got "
                f"{self.field:g}: take an orthographic or a Mollweide projection"
            )

    @property
    def half(self) -> tuple[float, float]:
        size = math.tan(math.radians(self.field / 2))
        return size, size

    @property
    def round(self) -> bool:
        return False

    def project(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        ahead, left, up = self._components(l, b)
        safe = np.where(ahead > 1e-9, ahead, np.nan)
        return -left / safe, up / safe

    def unproject(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._direction(np.ones_like(x), -x, y)
