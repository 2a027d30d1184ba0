"""What the benchmarks share: options, and the report of the papers' scripts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Self

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
import paper_report
from paper_report import Row
from paper_report import default_folder as data_folder

__all__ = ["Report", "Row", "data_folder", "parser"]


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--quick", action="store_true", help="tiny: a smoke run")
    options.add_argument("--seed", type=int, default=1)
    return options


class Report(paper_report.Report):
    """A report that compares with no paper; ``work`` in its folder is made."""

    @classmethod
    def of(cls, name: str, about: str | None, options: argparse.Namespace) -> Self:
        (options.output / "work").mkdir(parents=True, exist_ok=True)
        return super().of(name, about, options)
