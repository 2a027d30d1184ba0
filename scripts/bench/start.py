"""The time of a query of one place, over that of the imports that it needs.

``python scripts/bench/start.py map.zarr`` runs both in turns, each in a process of its
own, and prints medians of wall time and the ratio, with the ratio in CPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from verbs import Taken, dustmap, measured_run

_NEEDED = "import numpy, astropy.coordinates, zarr"


def compare(path: str, pairs: int = 11) -> None:
    """Print the medians of ``pairs`` alternating runs; the first pair only warms up."""
    place = ["query", path, "--l", "90", "--b", "5", "--distance", "400"]
    imports: list[Taken] = []
    queries: list[Taken] = []
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for _ in range(pairs + 1):
            imports.append(measured_run([sys.executable, "-c", _NEEDED], log))
            queries.append(dustmap(place, log))
    for what in ("wall", "cpu"):
        needed, taken = (
            median(getattr(one, what) for one in runs[1:])
            for runs in (imports, queries)
        )
        ratio = taken / needed
        print(f"{what}: imports {needed:.2f} s, query {taken:.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    compare(sys.argv[1], *(int(number) for number in sys.argv[2:]))
