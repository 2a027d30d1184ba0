"""Simulated catalogues through `dustmap ingest`: stars per second, memory, disk.

Stars, uniform over the sky, are written as a folder of parquet files with five columns
that are used, an identifier and a quality flag that cuts a tenth. Each run is a process
of its own. Memory is its proportional set size, sampled every tenth of a second: files
that are mapped into memory count as far as they are at hand.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import Report, parser

from pipelines.base.table import Row

MAPS = ("ra=ra:deg", "dec=dec:deg", "distance=d:pc")
MAPS += ("extinction=a:mag", "extinction_error=s:mag")
_PROGRAM = "from pipelines.cli import main; main()"
_PER_FILE = 10**6


def main() -> None:
    options = arguments()
    report = Report.of("ingest", __doc__, options)
    rows: list[Row] = []
    for stars in options.stars:
        source = options.output / "work" / f"stars-{stars}"
        if not source.exists():
            write_files(source, stars, options.seed)
        for name in ("folder", "one.parquet"):
            for workers in options.workers:
                print(
                    f"{stars:,} stars, {workers} threads", file=sys.stderr, flush=True
                )
                rows.append(one_run(source, stars, name, workers))
    report.tables = {"Ingestion": rows}
    report.write(options.output)


def one_run(source: Path, stars: int, name: str, workers: int) -> Row:
    """Ingest once; the output is measured."""
    output = source.with_name(name)
    words = ["ingest", str(source), "-o", str(output), "--where", "ruwe < 1.4"]
    words += ["--workers", str(workers), "--overwrite"]
    words += [word for item in MAPS for word in ("--map", item)]
    started, before = time.perf_counter(), processor_time()
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words], stdout=subprocess.DEVNULL
    )
    peak, spilled = 0, 0
    while child.poll() is None:
        peak = max(peak, memory(child.pid))
        # The ingestion renames and deletes its files while this looks.
        with contextlib.suppress(FileNotFoundError):
            waiting = output.parent.glob(f".{name}.*.part/*")
            spilled = max(spilled, sum(p.stat().st_size for p in waiting))
        time.sleep(0.1)
    wall = time.perf_counter() - started
    spent = processor_time() - before
    if child.returncode:
        raise RuntimeError(f"dustmap {' '.join(words)} failed")
    parts = list(output.iterdir()) if output.is_dir() else [output]
    return {
        "stars": stars,
        "output": name,
        "threads": workers,
        "wall [s]": wall,
        "CPU [s]": spent,
        "stars/s": stars / wall,
        "stars per CPU second": stars / spent,
        "peak [GiB]": peak / 2**30,
        "temporary files [byte/star]": spilled / stars,
        "output [byte/star]": sum(p.stat().st_size for p in parts) / stars,
    }


def processor_time() -> float:
    """CPU time of the processes that have ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(pid: int) -> int:
    """Proportional set size [byte]; nought of a process that has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def write_files(folder: Path, stars: int, seed: int) -> None:
    """A catalogue in files of a million stars."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for start in range(0, stars, _PER_FILE):
        n = min(_PER_FILE, stars - start)
        columns = {
            "source_id": start + rng.permutation(n),
            "ra": rng.uniform(0, 360, n),
            "dec": np.rad2deg(np.arcsin(rng.uniform(-1, 1, n))),
            "d": rng.uniform(50, 5000, n),
            "a": rng.normal(1.0, 0.5, n),
            "s": rng.uniform(0.02, 0.1, n),
            "ruwe": np.where(rng.random(n) < 0.1, 2.0, 1.0),
        }
        path = folder / f"{start // _PER_FILE:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=1 << 17)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, nargs="+", help="1e6 and 1e7")
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    chosen = options.parse_args()
    chosen.stars = chosen.stars or ([5_000] if chosen.quick else [10**6, 10**7])
    return chosen


if __name__ == "__main__":
    main()
