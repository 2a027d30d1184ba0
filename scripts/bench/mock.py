"""Half a million simulated stars in a box of 4 × 4 × 2 kpc: time, memory, error.

`dustmap simulate`, `fit` and `predict` as a user would run them, each in a process of
its own, with default settings but for the box, the grid's shape and eight samples.
Distances err as simulated. The stars to predict were not fitted; they are asked for
at their true places, where noise-free extinction and density are known.
"""

from __future__ import annotations

import argparse

import numpy as np
from matplotlib.figure import Figure
from report import Report, parser
from scoring import named, score_inside
from simulated import BOX, simulated
from verbs import fit_and_predict

SAMPLES = 8


def main() -> None:
    options = arguments()
    report = Report.of("mock", __doc__, options)
    work = options.output / "work"
    mock = simulated(
        work,
        stars=options.stars,
        targets=options.targets,
        seed=options.seed,
        settings=["truth.spacing=75"] if options.quick else [],
    )
    chosen = [
        *BOX,
        f"box.shape={options.shape}",
        f"inference.samples={options.samples}",
        f"inference.seed={options.seed}",
        "data.holdout=0",
        *options.set,
    ]
    fitted = fit_and_predict(work, mock.stars, mock.targets, chosen)
    scores = score_inside(fitted.columns, mock.truth)
    sigma = mock.train.extinction_error
    assert sigma is not None
    report.tables = {
        "Noise-free extinction and density of stars not fitted": [
            {**named(scores), **fitted.facts()}
        ],
        "What the fit took": [
            {"verb": verb, **taken.row()}
            for verb, taken in (
                ("simulate", mock.taken),
                ("fit", fitted.fit),
                ("predict", fitted.predict),
            )
        ],
        "Where the fit's time went": fitted.seconds(),
    }
    truth = mock.truth["extinction"]
    report.notes = [
        f"the true extinctions scatter by {truth.std():.4g} mag, the median error of "
        f"an observed one is {np.median(sigma):.4g} mag",
        *fitted.summary["messages"],
    ]
    inside = fitted.columns["inside"].astype(bool)
    columns = {name: values[inside] for name, values in fitted.columns.items()}
    report.write(
        options.output,
        lambda figure: draw(figure, columns, truth[inside]),
    )


def draw(figure: Figure, columns: dict[str, np.ndarray], truth: np.ndarray) -> None:
    """The error against distance, beside what the map says of it."""
    order = np.argsort(columns["distance"])
    bins = np.array_split(order, max(2, min(20, len(order) // 25)))
    error = columns["extinction_mean"] - truth
    place = [float(np.median(columns["distance"][b])) for b in bins]
    found = [float(np.sqrt(np.mean(error[b] ** 2))) for b in bins]
    said = [float(np.sqrt(np.mean(columns["extinction_std"][b] ** 2))) for b in bins]
    axes = figure.subplots()
    axes.plot(place, found, "o-", label="RMSE against the truth")
    axes.plot(place, said, "s--", label="standard deviation stated by the map")
    axes.set(
        xlabel="distance [pc]",
        ylabel="error of the noise-free extinction [mag]",
        ylim=(0, None),
    )
    axes.legend(frameon=False)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, help="500,000 unless given")
    options.add_argument("--targets", type=int, help="stars to predict; 30,000")
    options.add_argument(
        "--shape", type=int, nargs=3, metavar="N", help="grid points; 50 50 25"
    )
    options.add_argument("--samples", type=int, default=SAMPLES)
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    stars, targets, shape = 500_000, 30_000, [50, 50, 25]
    if chosen.quick:
        stars, targets, shape = 2_000, 500, [16, 16, 8]
    chosen.stars = chosen.stars or stars
    chosen.targets = chosen.targets or targets
    chosen.shape = chosen.shape or shape
    if chosen.quick:
        chosen.set = ["inference.learn=false", *chosen.set]
    return chosen


if __name__ == "__main__":
    main()
