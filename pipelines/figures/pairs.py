"""Values of two maps against each other, and differences in standard deviations."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from pipelines.figures.agreement import Agreement
from pipelines.figures.style import BLUE, NORMAL, ORANGE, SMALL, signed_text

_BINS = 50
_REACH = 5.0
_ROBUST = 99.8


def draw_pairs(
    axes: Axes,
    across: np.ndarray,
    up: np.ndarray,
    names: tuple[str, str],
    label: str,
) -> None:
    """A 2-D histogram of ``up`` (the first map) against ``across``, with statistics.

    Colours count pairs on a logarithmic scale; the line is equality. Axes end at the
    99.8th percentile; statistics are of all pairs.
    """
    known = np.isfinite(across) & np.isfinite(up)
    across, up = across[known], up[known]
    agreement = Agreement.of(up, across)
    both = np.concatenate([across, up])
    high = float(np.percentile(both, _ROBUST)) or float(both.max()) or 1.0
    low = min(0.0, float(np.percentile(both, 100 - _ROBUST)))
    edges = np.linspace(low, high, _BINS + 1)
    counts, *_ = np.histogram2d(up, across, bins=(edges, edges))
    axes.imshow(
        np.where(counts > 0, counts, np.nan),
        origin="lower",
        extent=(low, high, low, high),
        cmap=mpl.colormaps["YlGnBu"],
        norm=LogNorm(0.3, max(float(counts.max()), 2.0)),
        interpolation="nearest",
    )
    axes.plot((low, high), (low, high), color=ORANGE, linewidth=0.8)
    title = f"{label}\n{_statistics(agreement)}"
    axes.set_title(title, fontsize=SMALL - 0.5, pad=2.5, linespacing=1.25)
    axes.set_xlabel(names[1], fontsize=NORMAL, labelpad=2.0)
    axes.set_ylabel(names[0], fontsize=NORMAL, labelpad=1.0)
    _ticks(axes)


def draw_deviations(axes: Axes, deviations: np.ndarray, label: str) -> None:
    """A histogram of differences over the std, beside the standard normal."""
    finite = deviations[np.isfinite(deviations)]
    edges = np.linspace(-_REACH, _REACH, 51)
    width = edges[1] - edges[0]
    counts, _ = np.histogram(np.clip(finite, -_REACH, _REACH), edges)
    axes.stairs(counts / max(len(finite), 1) / width, edges, color=BLUE, fill=True,
                alpha=0.5)  # fmt: skip
    middle = np.linspace(-_REACH, _REACH, 201)
    axes.plot(middle, np.exp(-(middle**2) / 2) / np.sqrt(2 * np.pi), color="black",
              linewidth=0.8)  # fmt: skip
    inside = np.abs(finite) < 1
    text = (
        f"mean {signed_text(finite.mean(), 2)}, std {finite.std():.2f}\n"
        f"{inside.mean():.0%} within 1 $\\sigma$"
        if finite.size
        else "none"
    )
    axes.set_box_aspect(1)
    title = f"{label}\n{text}"
    axes.set_title(title, fontsize=SMALL - 0.5, pad=2.5, linespacing=1.25)
    axes.set_xlabel("difference / $\\sigma$", fontsize=NORMAL, labelpad=2.0)
    axes.set_xlim(-_REACH, _REACH)
    _ticks(axes)
    axes.set_xticks([-4, -2, 0, 2, 4])


def _ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=SMALL)


def _statistics(agreement: Agreement) -> str:
    return (
        f"of these $n$ = {agreement.count:,}: $r$ = {agreement.correlation:.2f},\n"
        f"slope {agreement.slope:.2f}, offset {agreement.offset:+.2g}, "
        f"rms {agreement.rms:.2g}"
    ).replace("-", "\N{MINUS SIGN}")
