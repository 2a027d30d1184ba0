"""What text a figure draws, and what of it is cut off or lies over another."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

# In pixels at 100 dots per inch: what letters may stand out, or over each other.
_TOLERANCE = 1.0


def drawn_text(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text as it is drawn, with its place in pixels."""
    found: list[tuple[str, Bbox]] = []
    plain = Text.draw

    def draw(self: Text, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            found.append((self.get_text(), self.get_window_extent(renderer)))
        return plain(self, renderer, *args, **kwargs)

    figure.set_dpi(100)
    canvas = FigureCanvasAgg(figure)
    # The layout draws the sky's numbers, too, before they are in place.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    with patch.object(Text, "draw", draw):
        canvas.draw()
    return found


def cut_off(figure: Figure) -> list[str]:
    """Texts that reach out of the canvas."""
    page = figure.bbox.padded(_TOLERANCE)
    return [
        text
        for text, box in drawn_text(figure)
        if not (
            page.x0 <= box.x0
            and box.x1 <= page.x1
            and page.y0 <= box.y0
            and box.y1 <= page.y1
        )
    ]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that lie over each other."""
    found = []
    for (one, a), (other, b) in combinations(drawn_text(figure), 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        tall = min(a.y1, b.y1) - max(a.y0, b.y0)
        if min(wide, tall) > _TOLERANCE:
            found.append((one, other))
    return found
