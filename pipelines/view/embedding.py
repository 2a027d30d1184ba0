"""What pages embed: packed arrays, templates, and plotly's JavaScript."""

from __future__ import annotations

import base64
import importlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError

# Codes of a byte: 0 to 254 are values, and this one is missing.
_MISSING = 255


def encoded(values: np.ndarray) -> str:
    """Return the bytes of an array in base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def packed(values: np.ndarray, scale: np.ndarray) -> dict[str, Any]:
    r"""Pack values ``(n, m)`` into compressed bytes for a browser.

    With a ``scale`` s of each column, ``(m,)``, a code is
    :math:`q = 254\sqrt{|v|/s}`, or :math:`127(1 \pm\sqrt{|v|/s})` if some values are
    negative, rounded: the error is largest where values are, and small ones stay
    distinct. Codes are stored as differences along the first axis modulo 256, which
    compress well.

    Returns ``bytes`` (deflated, base64), ``signed``, and ``error``: the largest error
    of a value over its column's scale, measured; below 0.008 by design.
    """
    scale = np.where(scale > 0, scale, 1.0)
    share = np.nan_to_num(values / scale)
    signed = bool((share < 0).any())
    root = np.sign(share) * np.sqrt(np.abs(share))
    codes = np.rint(127 * (1 + root) if signed else 254 * root)
    back = codes / 127 - 1 if signed else codes / 254
    error = np.abs(np.sign(back) * back**2 - share).max(initial=0.0)
    codes = np.where(np.isfinite(values), codes, _MISSING).astype(np.uint8)
    steps = np.diff(codes, axis=0, prepend=np.zeros_like(codes[:1]))
    deflated = np.frombuffer(zlib.compress(steps.tobytes(), 9), dtype=np.uint8)
    return {"bytes": encoded(deflated), "signed": signed, "error": float(error)}


def rendered(templates: Path, name: str, **values: Any) -> str:
    """Return a page of a folder's templates, with all values escaped."""
    jinja2 = optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Of imported macros, too.
    environment.globals |= values
    return environment.get_template(name).render()


def plotly_script() -> str:
    """Return plotly.js as bundled with its package, deflated, in base64: 2 MB of 5."""
    script = optional("plotly.offline").get_plotlyjs().encode("utf-8")
    return base64.b64encode(zlib.compress(script, 9)).decode("ascii")


def optional(name: str) -> Any:
    """Import a package of the extra ``view``; raises `InputError` without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"this page needs {name.partition('.')[0]}, which is not installed: "
            "pip install 'dustmap[view]'"
        ) from error
