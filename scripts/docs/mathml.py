"""Equations as MathML, which browsers draw by themselves: pages need no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(
        f'<div class="math-block">{_mathml(node, as_block=True)}</div>\n'
    )
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    """The equation; one that docutils cannot turn is a warning, and stays TeX."""
    source = node.astext().strip()
    try:
        return tex2mathml(source, as_block=as_block)
    except MathError as error:
        _LOGGER.warning("%s in the equation %r", error, source, location=node)
        return f"<code>{nodes.unescape(source)}</code>"


def setup(app: Any) -> dict[str, bool]:
    """Make it known to Sphinx as ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
