"""Names of well-known molecular clouds on maps that are seen from above.

Distances [pc] are averages of Zucker et al. 2020 (A&A 633, A51), in round directions.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from pipelines.base.geometry import unit_vectors
from pipelines.figures.page import INCH
from pipelines.figures.style import SMALL, length_unit, outline
from pipelines.maps.cube import Cube

# Name, Galactic longitude and latitude [deg], distance [pc]; the best known first,
# since a name that lies on another one is left out.
CLOUDS = (
    ("Taurus", 172.0, -15.0, 147.0),
    ("Orion A", 209.5, -19.5, 426.0),
    ("Perseus", 159.0, -20.0, 294.0),
    ("Ophiuchus", 353.5, 17.0, 144.0),
    ("Cepheus", 114.5, 14.6, 351.0),
    ("California", 162.0, -9.0, 452.0),
    ("Cygnus X", 80.0, 1.0, 1164.0),
    ("Rosette", 207.0, -2.0, 1337.0),
    ("North America", 84.5, -0.5, 807.0),
    ("Mon R2", 213.8, -12.6, 784.0),
    ("λ Ori", 195.1, -12.0, 409.0),
    ("NGC 2264", 203.2, 2.1, 770.0),
    ("Maddalena", 216.5, -2.5, 2110.0),
    ("Lagoon", 6.0, -1.2, 1272.0),
    ("Ara", 337.0, -1.5, 1050.0),
    ("Pipe", 0.5, 5.0, 180.0),
)
_SIZE = SMALL - 1
# What a name takes [mm]: for each letter, its height, and its distance from the mark.
_LETTER, _LINE, _BESIDE = 1.3, 2.8, 0.9
# Part of a panel in which the Sun and its name stand [mm].
_SUN = 3.0


def label_clouds(page: Figure, cube: Cube) -> list[str]:
    """Mark and name clouds in every panel of a map's x and y; return the names.

    Left out are clouds outside the box, and names that would lie on another one.
    """
    reach = max(map(abs, (cube.x[0], cube.x[-1], cube.y[0], cube.y[-1])))
    factor, _ = length_unit(reach)
    named = []
    for axes in (axes for axes in page.axes if axes.images):
        left, right = axes.get_xlim()
        bottom, top = axes.get_ylim()
        scale = axes.get_window_extent().width / page.dpi * INCH / (right - left)
        taken = [(-_SUN, _SUN, -_SUN, _SUN)]
        taken += [_frame(text, scale) for text in axes.texts]
        named = []
        for name, l, b, distance in CLOUDS:  # noqa: E741
            place = distance * unit_vectors(np.array(l), np.array(b))
            x, y = place[:2] * factor
            if not cube.z[0] <= place[2] <= cube.z[-1]:
                continue
            start = x * scale + _BESIDE
            frame = (
                start - 2 * _BESIDE,
                start + _LETTER * len(name),
                y * scale - _LINE / 2,
                y * scale + _LINE / 2,
            )
            inside = left * scale < frame[0] and frame[1] < right * scale
            inside &= bottom * scale < frame[2] and frame[3] < top * scale
            if not inside or any(_touch(frame, other) for other in taken):
                continue
            taken.append(frame)
            named.append(name)
            axes.plot(x, y, "+", color="black", ms=3.5, mew=0.7)
            axes.text(
                start / scale, y, name, fontsize=_SIZE, va="center",
                path_effects=outline(1.6),
            )  # fmt: skip
    return named


def _frame(text, scale: float) -> tuple[float, float, float, float]:
    """What a text that is centred takes of a panel [mm]: left, right, bottom, top."""
    x, y = (scale * value for value in text.get_position())
    half = _LETTER * len(text.get_text()) / 2
    return x - half, x + half, y - _LINE / 2, y + _LINE / 2


def _touch(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    apart = one[1] <= other[0] or other[1] <= one[0]
    return not (apart or one[3] <= other[2] or other[3] <= one[2])
