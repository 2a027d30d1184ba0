"""Blocks of a report (paragraphs, tables, pictures) and formatting of its numbers.

A paragraph is a plain string; ``page.html`` draws the other blocks by their ``kind``.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from pipelines.figures.style import styled

_DPI = 180
_PIXELS_PER_INCH = 125
_MINUS, _FIXED = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Notice:
    """A prominent ``title`` with lines; ``loud`` for warnings."""

    title: str
    lines: Sequence[str]
    loud: bool = True
    kind = "notice"


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column names the row."""

    caption: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    kind = "table"


@dataclass(frozen=True)
class Picture:
    """An image in the page itself; ``alt`` describes it.

    ``width`` is in pixels of the page; narrow pictures are side by side.
    """

    source: str
    alt: str
    caption: str
    width: int
    kind = "picture"


@dataclass(frozen=True)
class Listing:
    """The verbatim text of a file, folded under ``title``."""

    title: str
    content: str
    kind = "listing"


@dataclass(frozen=True)
class View:
    """The interactive view: ``data`` is JSON for ``view.js``, ``about`` paragraphs."""

    data: str
    about: Sequence[str]
    kind = "view"


Block = str | Notice | Table | Picture | Listing | View


@dataclass(frozen=True)
class Section:
    """A headline and its blocks; ``key`` is its anchor.

    A ``folded`` section shows only its headline until opened.
    """

    key: str
    title: str
    blocks: Sequence[Block]
    folded: bool = False


@styled
def picture(figure: Figure, alt: str, caption: str) -> Picture:
    """Return a figure as a reproducible data URI of a PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, bbox_inches="tight")
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    width = round(_PIXELS_PER_INCH * figure.get_figwidth())
    return Picture(f"data:image/png;base64,{content}", alt, caption, width)


def count(number: float) -> str:
    """Format a whole number with separators of thousands."""
    return f"{int(number):,}"


def several(number: float, noun: str) -> str:
    """Format ``1 star``, ``2 stars``."""
    return f"{count(number)} {noun}{'' if int(number) == 1 else 's'}"


def significant(number: float, digits: int = 3) -> str:
    """Format a measured number to significant digits, including trailing zeros."""
    if not math.isfinite(number) or (number and not 1e-5 < abs(number) < 1e9):
        return plain(number, digits)
    leading = math.floor(math.log10(abs(number))) if number else 0
    decimals = max(0, digits - 1 - leading)
    return f"{number:,.{decimals}f}".replace("-", _MINUS)


def plain(number: float, digits: int = 4) -> str:
    """Format a setting without superfluous digits."""
    text = f"{number:.{digits}g}"
    if "e" in text and 1 <= abs(number) < 1e9:
        text = f"{number:.0f}"
    return text.replace("-", _MINUS)


def percent(fraction: float, error: float | None = None) -> str:
    """Format a fraction in percent, with its error if given."""
    around = "" if error is None else f"{_FIXED}±{_FIXED}{100 * error:.1f}"
    return f"{100 * fraction:.1f}{around}%"


def by(numbers: Iterable[float], digits: int = 4) -> str:
    """Format ``4200 × 4300 × 900``, or one number if all are equal."""
    texts = [plain(number, digits) for number in numbers]
    return texts[0] if len(set(texts)) == 1 else " × ".join(texts)


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit up to hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    """Format bytes in MiB or GiB."""
    mebi = number / 2**20
    return f"{mebi:.3g} MiB" if mebi < 1024 else f"{mebi / 1024:.2f} GiB"
