#!/usr/bin/env python3
"""Gather the tables "paper | here" of all scripts into one page.

Every ``NAME.json`` that a script of the paper wrote, in FOLDER or one of its folders,
becomes a section with what it did, machine, date and commit. Of several runs of one
script the latest counts (a smoke run only if there is no other).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from paper_report import Row, refusals, section, shown

from pipelines.base.errors import InputError
from pipelines.base.table import Table
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
_PARTS = {"name", "about", "settings", "machine", "seconds", "comparisons"}

_HEAD = """# The papers' experiments, here

One script for each experiment; each says what it does and why its figures differ from
the paper's. `--quick` is a smoke run, without it a run ends in half an hour on two
cores.

```sh
python scripts/paper/NAME.py --output FOLDER     # NAME.json, NAME.md, NAME.png
python scripts/paper/gather.py FOLDER            # this page
```

The first columns of the tables below are the paper's figures, the column *here* has
what the run measured, and nothing else. The tables behind it and the figures are in the
folders that the scripts write.
"""


def main() -> None:
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
    chosen = options.parse_args()
    with refusals():
        records = find_records(chosen.folder)
    overview = Table.of_rows([_overview(record) for record in records]).text()
    page = "\n".join([_HEAD, overview, *map(_section, records)])
    with atomic_file(chosen.output, overwrite=True) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{chosen.output}: {', '.join(record['name'] for record in records)}")


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


def _weight(record: dict[str, Any]) -> tuple[bool, str]:
    """Rank whole runs above smoke runs, then later dates above earlier ones."""
    return not record["settings"]["quick"], record["machine"]["date"]


def _overview(record: dict[str, Any]) -> Row:
    machine = record["machine"]
    compared = [entry for entry in record["comparisons"] if entry["here"] is not None]
    return {
        "script": f"[`{record['name']}`](#{record['name']})",
        "compared": f"{len(compared)} of {len(record['comparisons'])}",
        "minutes": record["seconds"] / 60,
        "date": machine["date"],
        "commit": machine["commit"],
    }


def _section(record: dict[str, Any]) -> str:
    compared = [shown(entry) for entry in record["comparisons"]]
    text = section(record, command_of(record), {"": compared})
    return f"## {record['name']}\n\n{text}"


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
