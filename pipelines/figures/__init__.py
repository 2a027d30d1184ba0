"""Figures of a map: each takes what the exports hold and returns a matplotlib Figure.

Nothing here touches pyplot, so figures can be drawn in threads and without a screen.
"""

from pipelines.figures.comparison import compare
from pipelines.figures.planes import density_slice, edge_on, face_on
from pipelines.figures.sightlines import lines_of_sight
from pipelines.figures.sky import sky
from pipelines.figures.style import save_figure

__all__ = [
    "compare",
    "density_slice",
    "edge_on",
    "face_on",
    "lines_of_sight",
    "save_figure",
    "sky",
]
