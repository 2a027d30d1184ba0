"""The picture of a fit's convergence."""

import pytest

from pipelines.figures.history import history


def residuals(stage, seconds, tolerance=None):
    asked = {} if tolerance is None else {"tolerance": tolerance}
    return [
        {"stage": stage, "seconds": s, "residual": 0.5 / (1 + s), **asked}
        for s in seconds
    ]


def dashed(axes):
    return [
        (line.get_xdata(), line.get_ydata())
        for line in axes.lines
        if line.get_linestyle() == "--"
    ]


def test_a_tolerance_is_drawn_only_over_the_solves_that_were_asked_for_it():
    records = [
        *residuals("mean over samples", [1.0, 2.0, 3.0]),
        *residuals("samples 1-16", [4.0, 5.0], 1e-2),
        *residuals("samples 17-32", [6.0, 7.0], 1e-2),
        *residuals("rough samples 1-2", [7.5]),
        *residuals("rough samples 3-4", [7.6]),
        *residuals("mean", [8.0, 9.0], 1e-4),
    ]
    (axes,) = history(records).axes
    lines = [([*map(float, x)], [*map(float, y)]) for x, y in dashed(axes)]
    assert lines == [([8.0, 9.0], [1e-4, 1e-4]), ([4.0, 7.0], [1e-2, 1e-2])]
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    named = {"mean over samples (3)", "samples (4)", "rough samples (2)", "mean (2)"}
    assert labels == named
    (without,) = history(records[:3]).axes
    assert dashed(without) == []


def test_every_kind_of_number_has_a_panel_and_none_is_refused():
    records = [
        *residuals("mean", [1.0]),
        {"stage": "misfit", "seconds": 2.0, "misfit": 3.0},
        {"stage": "svi rows", "seconds": 2.0},
    ]
    assert len(history(records).axes) == 2
    with pytest.raises(ValueError, match="no record holds a residual"):
        history(records[-1:])


def test_the_legend_covers_no_point_and_numbers_are_plain():
    records = [
        {"stage": "misfit", "seconds": float(i), "misfit": 20.0 - 3 * i}
        for i in range(6)
    ]
    figure = history(records)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend().get_window_extent()
    assert legend.y0 >= axes.get_window_extent().y1 - 1.0
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert "10" in texts and not any("times" in text for text in texts)
