"""What the figures share: colours that tell a sign, scales, units, saving."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from astropy import units as u
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from pipelines.errors import InputError
from pipelines.figures.page import Page
from pipelines.store import atomic_file

# Okabe and Ito's colours, which all kinds of colour vision tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY_BLUE, YELLOW, BLACK = "#56B4E9", "#E69F00", "#000000"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, YELLOW, BLACK)
UNMAPPED = "0.72"
SMALL, NORMAL = 7.0, 8.0
_LEVELS = 512
_ROBUST = (0.5, 99.5)
_FROM_KPC = 2000.0
_FROM_MAG_PER_PC = 0.1
HATCH = 0.3
_DPI = 200
_FORMATS = ("png", "pdf", "svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A colour map with its limits; ``extend`` as matplotlib's colour bars have it."""

    cmap: Colormap
    norm: Normalize
    extend: str

    def image_options(self) -> dict[str, Any]:
        """Options of ``imshow``."""
        return {"cmap": self.cmap, "norm": self.norm, "interpolation": "nearest"}


def signed_scale(*images: np.ndarray) -> Scale:
    """One linear scale for dust in all ``images``, robust to outliers.

    Limits are the 0.5 and 99.5 percentiles, widened to contain zero. From zero up the
    colours go from pale to dark; below zero they turn blue, equally strong for
    equally large values, so that an unphysical value cannot be mistaken for little
    dust. What lies beyond the limits is told by the bar's arrows.
    """
    finite = np.concatenate([image[np.isfinite(image)] for image in images])
    if not finite.size or not finite.any():
        finite = np.array([0.0, 1.0])
    low, high = (float(value) for value in np.percentile(finite, _ROBUST))
    low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = min(float(finite.min()), 0.0), max(float(finite.max()), 0.0)
    reach = max(-low, high)
    values = low + (np.arange(_LEVELS) + 0.5) / _LEVELS * (high - low)
    positive = mpl.colormaps["magma_r"](np.clip(values / reach, 0, 1) * 0.92)
    negative = mpl.colormaps["Blues"](np.clip(-values / reach, 0, 1) * 0.75 + 0.25)
    colours = np.where(values[:, None] < 0, negative, positive)
    return Scale(
        cmap=_with_extremes(colours),
        norm=Normalize(low, high),
        extend=_extend(finite.min() < low, finite.max() > high),
    )


def spread_scale(image: np.ndarray) -> Scale:
    """A linear scale for standard deviations, robust to outliers."""
    finite = image[np.isfinite(image)]
    if not finite.size:
        finite = np.array([0.0, 1.0])
    low, high = (float(value) for value in np.percentile(finite, _ROBUST))
    if high == low:
        low, high = min(0.0, low), max(high, float(finite.max())) or 1.0
    colours = mpl.colormaps["cividis"](np.linspace(0, 1, _LEVELS))
    return Scale(
        cmap=_with_extremes(colours),
        norm=Normalize(low, high),
        extend=_extend(finite.min() < low, finite.max() > high),
    )


def colour_bar(
    axes: Axes,
    image: Any,
    scale: Scale,
    label: str,
    *,
    place: tuple[float, float, float, float] = (1.03, 0.0, 0.035, 1.0),
    horizontal: bool = False,
) -> None:
    """Add a bar that follows the panel's own shape.

    ``place`` is left, bottom, width and height in fractions of the panel.
    """
    figure = axes.figure
    bar = figure.colorbar(
        image,
        cax=axes.inset_axes(place),
        orientation="horizontal" if horizontal else "vertical",
        extend=scale.extend,
    )
    if (scale.norm.vmin or 0.0) < 0:
        label += ", blue: negative" if horizontal else "\nblue: negative"
    bar.set_label(label, fontsize=NORMAL)
    bar.ax.tick_params(labelsize=SMALL)


def length_unit(reach: float) -> tuple[float, str]:
    """Factor from pc and the name of the unit for a figure that reaches so far [pc]."""
    return (1e-3, "kpc") if reach >= _FROM_KPC else (1.0, "pc")


def length_text(value: float) -> str:
    """Write a distance [pc] in the unit that suits it."""
    factor, unit = length_unit(value)
    return f"{value * factor:.4g} {unit}"


def density_unit(values: np.ndarray, unit: str) -> tuple[float, str]:
    """Factor and label that turn ``unit`` into mag/pc, or mag/kpc for small values."""
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= _FROM_MAG_PER_PC else "mag kpc-1")
    return native.to(shown), f"[{shown.to_string('latex_inline')}]"


def signed_text(value: float, digits: int = 4) -> str:
    """A number with a proper minus sign."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def outline(width: float = 2.0) -> list[Any]:
    """A pale edge that keeps lines and text legible on any colour."""
    return [patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)]


def save_figure(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    dpi: float = _DPI,
) -> None:
    """Save as PNG, PDF or SVG by the ending of ``path``, whole or not at all.

    Fonts are embedded as outlines that stay text (PDF) or become paths (SVG); no file
    holds the time, so that the same figure is the same file. A `Page` keeps its width;
    any other figure is cropped to what is drawn.

    Raises
    ------
    InputError
        If ``path`` ends otherwise, exists and ``overwrite`` is false, or cannot be
        written.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in _FORMATS:
        raise InputError(
            f"{path}: figures are written as {', '.join(_FORMATS)}: give it one of "
            "these endings"
        )
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    settings: Any = {
        "pdf.fonttype": 42,
        "svg.hashsalt": "dustmap",
        "hatch.linewidth": HATCH,
    }
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        mpl.rc_context(settings),
    ):
        figure.savefig(
            temporary,
            format=kind,
            dpi=dpi,
            bbox_inches=None if isinstance(figure, Page) else "tight",
            metadata=metadata,
        )


def _with_extremes(colours: np.ndarray) -> Colormap:
    return ListedColormap(colours.tolist()).with_extremes(bad=UNMAPPED)


def _extend(below: Any, above: Any) -> str:
    return {
        (False, False): "neither",
        (True, False): "min",
        (False, True): "max",
        (True, True): "both",
    }[bool(below), bool(above)]
