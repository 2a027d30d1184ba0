"""What a report is made of: sections of paragraphs, tables, pictures and one view."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.figure import Figure

_DPI = 180
_PIXELS_PER_INCH = 125


@dataclass(frozen=True)
class Text:
    """Paragraphs in plain words."""

    paragraphs: tuple[str, ...]
    kind = "text"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What must be seen: a ``title`` and its lines; ``loud`` if it warns."""

    title: str
    lines: tuple[str, ...]
    loud: bool = True
    kind = "notice"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under a header; the first column names the row."""

    caption: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...]
    kind = "table"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image in the page itself; ``alt`` says in words what it shows.

    ``width`` in pixels of the page; a narrow one stands beside its neighbour.
    """

    source: str
    alt: str
    caption: str
    width: int
    kind = "picture"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Text as it stands in a file, folded away under ``title``."""

    title: str
    content: str
    kind = "listing"


@dataclass(frozen=True, kw_only=True)
class View:
    """The interactive view: ``data`` is JSON for ``view.js``, ``about`` says what."""

    data: str
    about: tuple[str, ...]
    kind = "view"


Block = Text | Notice | Table | Picture | Listing | View


@dataclass(frozen=True, kw_only=True)
class Section:
    """A headline and what stands under it; ``key`` is its anchor.

    A ``folded`` one shows its headline alone until it is opened.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


def facts(caption: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of two columns, without a header."""
    return Table(caption=caption, rows=tuple(rows))


def picture(figure: Figure, *, alt: str, caption: str, vector: bool = False) -> Picture:
    """A figure as a data URI: PNG, or SVG where lines are few."""
    stream = io.BytesIO()
    form, mime = ("svg", "image/svg+xml") if vector else ("png", "image/png")
    # An SVG without a date: the same figure is the same file.
    metadata = {"Date": None} if vector else None
    figure.savefig(
        stream, format=form, dpi=_DPI, bbox_inches="tight", metadata=metadata
    )
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    return Picture(
        source=f"data:{mime};base64,{content}",
        alt=alt,
        caption=caption,
        width=round(_PIXELS_PER_INCH * figure.get_figwidth()),
    )
