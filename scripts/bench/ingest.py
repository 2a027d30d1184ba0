"""A catalogue in the HATS layout through `dustmap ingest`: stars per second, memory.

Simulated stars, uniform over the sky, are written as a partitioned tree of parquet
files with five columns that are used, an identifier and a quality flag that cuts a
tenth. Each run is a process of its own, with as many processes under it as workers.
Memory is their proportional set sizes together, asked for every tenth of a second:
files that are mapped into memory count as far as they are at hand.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import healpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from report import Report, parser

from pipelines.base.measurement import Row

MAPS = ("ra=ra:deg", "dec=dec:deg", "distance=d:pc")
MAPS += ("extinction=a:mag", "extinction_error=s:mag")
_PROGRAM = "from pipelines.cli import main; main()"
_ORDER = 2


def main() -> None:
    options = arguments()
    report = Report.of("ingest", __doc__, options)
    rows: list[Row] = []
    for stars in options.stars:
        source = options.output / "work" / f"hats-{stars}"
        if not source.exists():
            write_tree(source, stars, options.seed)
        for workers in options.workers:
            print(f"{stars:,} stars, {workers} workers", file=sys.stderr, flush=True)
            rows.append(one_run(source, stars, workers))
    report.tables = {"Ingestion": rows}
    report.write(options.output, lambda figure: draw(figure, rows))


def one_run(source: Path, stars: int, workers: int) -> Row:
    """Ingest once; the folder that comes out is measured and removed."""
    output = source.with_name(f"{source.name}-out")
    words = ["ingest", str(source), "-o", str(output), "--where", "ruwe < 1.4"]
    words += ["--workers", str(workers), "--overwrite"]
    words += [word for item in MAPS for word in ("--map", item)]
    started, before = time.perf_counter(), processor_time()
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words], stdout=subprocess.DEVNULL
    )
    peak, spilled = 0, 0
    while child.poll() is None:
        peak = max(peak, sum(memory(pid) for pid in family(child.pid)))
        spilled = max(spilled, spill_bytes(output))
        time.sleep(0.1)
    wall = time.perf_counter() - started
    spent = processor_time() - before
    if child.returncode:
        raise RuntimeError(f"dustmap {' '.join(words)} failed")
    written = sum(p.stat().st_size for p in output.iterdir())
    read = sum(p.stat().st_size for p in source.rglob("*.parquet"))
    parts = len(list(output.glob("*.parquet")))
    return {
        "stars": stars,
        "workers": workers,
        "wall [s]": wall,
        "CPU [s]": spent,
        "stars/s": stars / wall,
        "stars per CPU second": stars / spent,
        "peak, all processes [GiB]": peak / 2**30,
        "input [byte/star]": read / stars,
        "spilled [byte/star]": spilled / stars,
        "output [byte/star]": written / stars,
        "partitions": parts,
    }


def processor_time() -> float:
    """CPU time of the processes that have ended [s], and of those under them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def family(pid: int) -> Iterator[int]:
    """A process and all under it."""
    yield pid
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            for child in text.split():
                yield from family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return


def memory(pid: int) -> int:
    """Proportional set size [byte]; nought of a process that has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def spill_bytes(output: Path) -> int:
    """Return the size of the temporary files of an ingestion [byte]."""
    total = 0
    # The ingestion renames and deletes them while this looks.
    with contextlib.suppress(FileNotFoundError):
        for path in output.parent.glob(f".{output.name}.*.part/*"):
            if path.suffix in (".arrow", ".npy"):
                with contextlib.suppress(FileNotFoundError):
                    total += path.stat().st_size
    return total


def write_tree(folder: Path, stars: int, seed: int) -> None:
    """A catalogue of about equal partitions over the whole sky."""
    rng = np.random.default_rng(seed)
    pixels = 12 * 4**_ORDER
    counts = rng.multinomial(stars, np.full(pixels, 1 / pixels))
    level = folder / "dataset" / f"Norder={_ORDER}" / "Dir=0"
    level.mkdir(parents=True)
    for pixel, n in enumerate(counts):
        # Places anywhere in the pixel: those of its descendants at order 15.
        shift = 2 * (15 - _ORDER)
        inside = (pixel << shift) + rng.integers(0, 1 << shift, n)
        ra, dec = healpy.pix2ang(2**15, inside, nest=True, lonlat=True)
        columns = {
            "source_id": (inside << 32) + rng.permutation(n),
            "ra": ra,
            "dec": dec,
            "d": rng.uniform(50, 5000, n),
            "a": rng.normal(1.0, 0.5, n),
            "s": rng.uniform(0.02, 0.1, n),
            "ruwe": np.where(rng.random(n) < 0.1, 2.0, 1.0),
        }
        path = level / f"Npix={pixel}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=1 << 17)
    listing = "".join(f"{_ORDER},{pixel}\n" for pixel in range(pixels))
    (folder / "partition_info.csv").write_text(f"Norder,Npix\n{listing}")
    (folder / "hats.properties").write_text(
        f"dataproduct_type=object\nhats_nrows={stars}\n"
    )


def draw(figure: Figure, rows: list[Row]) -> None:
    """Rate and memory against the number of stars."""
    left, right = figure.subplots(1, 2)
    for workers in sorted({int(row["workers"]) for row in rows}):
        own = [row for row in rows if row["workers"] == workers]
        stars = [row["stars"] for row in own]
        label = f"{workers} worker" + "s" * (workers != 1)
        left.plot(stars, [row["stars/s"] for row in own], "o-", label=label)
        peak = [row["peak, all processes [GiB]"] for row in own]
        right.plot(stars, peak, "o-", label=label)
    for axes, label in ((left, "stars per second"), (right, "peak memory [GiB]")):
        axes.set(xlabel="stars", ylabel=label, xscale="log", ylim=(0, None))
        axes.legend(frameon=False)


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
