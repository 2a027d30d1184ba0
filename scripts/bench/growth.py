"""The map by its defaults as stars are added: the first of `galaxy_dev_million.npz`.

Every row is a fit of its own, judged by the same held-out stars (`development`). Stages
are seconds of wall time, memory the peak of the fit's process so far.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from development import commit, one_set
from development_sets import galaxy
from report import Report, Row, data_folder, parser

from pipelines.base.measurement import table

_SIZES, _QUICK = (48_000, 240_000, 1_000_000), (2_000, 4_000)
_SKY = partial(galaxy, name="galaxy_dev_million", density=1e-3)


def main() -> None:
    options = arguments()
    report = Report.of("growth", __doc__, options)
    rows: list[Row] = []
    stages: list[Row] = []
    for size in options.stars or (_QUICK if options.quick else _SIZES):
        part = _SKY(options.data, first=size)
        if options.quick:
            part = part.first(size, 400)
        run = options.output / f"{size}"
        row, _ = one_set(part, options, run)
        summary = json.loads((run / "run.json").read_text())["summary"]
        rows.append({**row, "grade": summary["grade"]})
        spent = {f"{name} [s]": round(s, 1) for name, s in summary["seconds"].items()}
        memory = summary["peak_memory_bytes"] / 2**30
        stages.append({"stars": size, **spent, "memory [GiB]": round(memory, 2)})
        print(table(rows), table(stages), sep="\n", file=sys.stderr, flush=True)
    report.tables = {f"Held-out stars, {commit()}": rows, "Stages": stages}
    report.write(options.output)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--stars", type=int, nargs="+", metavar="N")
    options.add_argument(
        "--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of the fit"
    )
    return options.parse_args()


if __name__ == "__main__":
    main()
