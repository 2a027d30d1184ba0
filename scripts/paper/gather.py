#!/usr/bin/env python3
"""Gather the tables "paper | here" of all scripts into one page.

Every ``NAME.json`` that a script of the paper wrote, in FOLDER or one of its folders,
becomes a section with the machine's kind, date, commit and notes. Of several runs of
one script the largest counts (a smoke run only if there is no other), of equal ones the
latest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_report import NOT_RUN, Comparison, Row, table

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file

# In the order of the paper; whatever else there is comes behind.
_ORDER = (
    "pcg_vs_cg",
    "preconditioner",
    "whitening_time",
    "derivative_gp",
    "spatial",
    "dust",
    "road3d",
    "ciq_svgp",
    "airline",
)
_PARTS = {"name", "settings", "machine", "seconds", "comparisons", "notes"}
_SMOKE = "**A smoke run: its numbers mean little.**"

_HEAD = """# The papers' experiments, here

One script for each experiment; each says in its own report what it does and why its
figures differ from the paper's. `--quick` is a smoke run, `--full` has the paper's
sizes, without either it ends in half an hour on two cores.

```sh
python scripts/paper/NAME.py --output FOLDER     # NAME.json, NAME.md, NAME.png
python scripts/paper/gather.py FOLDER            # this page
```

The first columns of the tables below are the paper's figures, the column *here* has
what the run measured, and nothing else: what was not run is "{not_run}". All further
tables and the figures are in the folders that the scripts write.
"""


def main() -> None:
    options = arguments()
    try:
        records = find_records(options.folder)
        page = page_of(records)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    with atomic_file(options.output, overwrite=True) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{options.output}: {', '.join(record['name'] for record in records)}")


def arguments() -> argparse.Namespace:
    """The command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, metavar="FOLDER")
    options.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path(__file__).parent / "README.md",
        help="by default README.md beside this script",
    )
    return options.parse_args()


def find_records(folder: Path) -> list[dict[str, Any]]:
    """The run that counts of each script, in the order of the paper.

    Raises
    ------
    InputError
        If there is none, or a file is no JSON.
    """
    best: dict[str, dict[str, Any]] = {}
    for file in sorted([*folder.glob("*.json"), *folder.glob("*/*.json")]):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file} is no JSON: {error}") from None
        if not isinstance(record, dict) or not record.keys() >= _PARTS:
            continue
        known = best.get(record["name"])
        if known is None or _weight(record) >= _weight(known):
            best[record["name"]] = record
    if not best:
        raise InputError(
            f"{folder} and its folders hold no report of a script of the paper: run "
            "one with --output FOLDER first"
        )
    places = {name: place for place, name in enumerate(_ORDER)}
    return sorted(
        best.values(), key=lambda r: (places.get(r["name"], len(_ORDER)), r["name"])
    )


def _weight(record: dict[str, Any]) -> tuple[int, str]:
    """Larger sizes weigh more, then later dates."""
    settings = record["settings"]
    size = 2 if settings.get("full") else 0 if settings.get("quick") else 1
    return size, record["machine"]["date"]


def page_of(records: Sequence[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    overview = table([_overview(record) for record in records])
    sections = [_section(record) for record in records]
    return "\n".join([_HEAD.format(not_run=NOT_RUN), overview, *sections])


def _overview(record: dict[str, Any]) -> Row:
    machine = record["machine"]
    compared = [entry for entry in record["comparisons"] if entry["here"] is not None]
    return {
        "script": f"[`{record['name']}`](#{record['name']})",
        "size": ("smoke run", "default", "full")[_weight(record)[0]],
        "compared": f"{len(compared)} of {len(record['comparisons'])}",
        "minutes": record["seconds"] / 60,
        "date": machine["date"],
        "commit": machine["commit"],
    }


def _section(record: dict[str, Any]) -> str:
    machine = dict(record["machine"])
    machine.pop("load averages", None)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    rows = [Comparison(**entry).row() for entry in record["comparisons"]]
    smoke = [_SMOKE, ""] if record["settings"].get("quick") else []
    lines = [
        f"## {record['name']}\n",
        *smoke,
        f"- `{command_of(record)}`, {record['seconds']:.0f} s",
        f"- {facts}\n",
        table(rows),
        *(f"- {note}" for note in record["notes"]),
    ]
    return "\n".join(lines) + "\n"


def command_of(record: dict[str, Any]) -> str:
    """The command line without names of files and folders."""
    words = [f"python scripts/paper/{record['name']}.py"]
    for name, value in record["settings"].items():
        option = f"--{name.replace('_', '-')}"
        if name == "output" or value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, str):
            words.append(f"{option} {name.upper()}")
        else:
            words.append(f"{option} {value}")
    return " ".join(words)


if __name__ == "__main__":
    main()
