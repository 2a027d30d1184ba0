"""What catalogues of 2.2e8 and 1.8e9 stars would take, from rates that were measured.

Reads ``ingest.json`` and ``merging.json`` of those benchmarks. Nothing here was run:
every number is the measured one times a ratio of sizes, by the assumptions below.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from report import Report, parser

from pipelines.base.measurement import Row

SURVEYS = {
    "2.2e8 stars (with distances and extinctions)": 2.2e8,
    "1.8e9 stars (all of Gaia)": 1.8e9,
}
ASSUMPTIONS = (
    "ingestion: CPU time as in the largest run, shared by the workers; memory does not "
    "grow with the stars",
    "on disk during ingestion: input is left alone, spilled rows and output are both "
    "there at the end",
    "a fit's time grows in proportion to observations times iterations, the latter as "
    "measured; its memory is 1.1 kB per observation (weights and vectors of a sight "
    "line of about 100 cells), of all processes together, without the grid's",
    "merged: at most one for each cell; with nside 256 and 25 pc to 3 kpc there are "
    "9.4e7 cells, the number taken; a merged observation costs as much as a star",
    "the fit's rate is that of the benchmark's small grid on its machine: a guide to "
    "what merging and further processes would have to gain, not a promise",
)
_BYTES_PER_OBSERVATION = 1100.0
_CELLS = 12 * 256**2 * 3000 / 25


def main() -> None:
    options = arguments()
    report = Report.of("survey_size", __doc__, options)
    ingestion = _rows(options.ingest, "Ingestion")[-1]
    fits = _rows(
        options.merging, "Noise-free extinction and density of stars not fitted"
    )
    rate = fits[0]["observations"] / fits[0]["fit CPU [s]"]
    rows: list[Row] = []
    for name, stars in SURVEYS.items():
        merged = min(stars, _CELLS)
        spilled, kept = (
            stars * ingestion[f"{what} [byte/star]"] / 1e9
            for what in ("spilled", "output")
        )
        rows.append(
            {
                "catalogue": name,
                "ingest [core-h]": stars / ingestion["stars per CPU second"] / 3600,
                "its memory [GiB]": ingestion["peak, all processes [GiB]"],
                "disk, for a while [GB]": spilled + kept,
                "disk [GB]": kept,
                "fit [core-h]": stars / rate / 3600,
                "fit memory [GB]": stars * _BYTES_PER_OBSERVATION / 1e9,
                "merged observations": merged,
                "fit of merged [core-h]": merged / rate / 3600,
                "its memory [GB]": merged * _BYTES_PER_OBSERVATION / 1e9,
            }
        )
    report.tables = {"Extrapolated, not measured": rows}
    report.notes = list(ASSUMPTIONS)
    report.write(options.output)


def _rows(path: Path, title: str) -> list[Row]:
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["settings"].get("quick"):
        raise SystemExit(f"{path} is of a smoke run: its numbers mean nothing")
    return record["tables"][title]


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--ingest", type=Path, required=True, help="ingest.json")
    options.add_argument("--merging", type=Path, required=True, help="merging.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
