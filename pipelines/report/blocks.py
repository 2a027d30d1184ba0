"""What a report is made of: sections of paragraphs, tables, pictures and one view."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

_DPI = 180
_PIXELS_PER_INCH = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Paragraphs in plain words."""

    paragraphs: tuple[str, ...]
    kind: str = field(default="text", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What must be seen: a ``title`` and its lines; ``loud`` if it warns."""

    title: str
    lines: tuple[str, ...]
    loud: bool = True
    kind: str = field(default="notice", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under a header; the first column names the row."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: str = field(default="table", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image in the page itself; ``alt`` says in words what it shows.

    ``width`` in pixels of the page; a narrow one stands beside its neighbour.
    """

    source: str
    alt: str
    caption: str
    width: int
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Text as it stands in a file, folded away under ``title``."""

    title: str
    content: str
    kind: str = field(default="listing", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The interactive view: ``data`` is JSON for ``view.js``, ``about`` says what."""

    data: str
    about: tuple[str, ...]
    kind: str = field(default="view", init=False)


Block = Text | Notice | Table | Picture | Listing | View


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A headline and what stands under it; ``key`` is its anchor."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def facts(caption: str, pairs: Mapping[str, str] | Sequence[tuple[str, str]]) -> Table:
    """A table of two columns, without a header."""
    rows = pairs.items() if isinstance(pairs, Mapping) else pairs
    return Table(caption=caption, header=(), rows=tuple(rows))


def picture(figure: Figure, *, alt: str, caption: str, vector: bool = False) -> Picture:
    """A figure as a data URI: PNG, or SVG where lines are few."""
    stream = io.BytesIO()
    if vector:
        # Without a date: the same figure is the same file.
        figure.savefig(
            stream, format="svg", bbox_inches="tight", metadata={"Date": None}
        )
    else:
        figure.savefig(stream, format="png", dpi=_DPI, bbox_inches="tight")
    width = round(_PIXELS_PER_INCH * figure.get_figwidth())
    mime = "image/svg+xml" if vector else "image/png"
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    source = f"data:{mime};base64,{content}"
    return Picture(source=source, alt=alt, caption=caption, width=width)
