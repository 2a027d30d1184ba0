"""Ten million rows pass through a bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

ROWS = 10_000_000
CHUNK = 1_000_000
PROGRAM = """
import sys
from pathlib import Path
from pipelines.catalog.ingest import ingest

maps = ["ra=ra:deg", "dec=dec:deg", "parallax=plx:mas", "parallax_error=plx_err:mas"]
maps += ["extinction=a:mag", "extinction_error=a_err:mag"]
report = ingest(
    [Path(sys.argv[1])], Path(sys.argv[2]), mappings=maps, where="ruwe < 1.4"
)
print(report.rows_read, report.rows_kept, report.faulty, report.cut)
# The peak that getrusage tells includes that of the parent before exec.
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) / 2**20)
"""


def make_rows(start: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "source_id": rng.permutation(CHUNK) + start,
        "ra": rng.uniform(0, 360, CHUNK),
        "dec": rng.uniform(-90, 90, CHUNK),
        "plx": rng.uniform(0.5, 5, CHUNK),
        "plx_err": np.full(CHUNK, 0.05),
        "a": rng.normal(1, 0.5, CHUNK),
        "a_err": np.full(CHUNK, 0.05),
        "ruwe": np.where(rng.random(CHUNK) < 0.1, 2.0, 1.0),
    }


def write_rows(path: Path) -> None:
    """Write ten million rows in pieces, so that the test itself stays small."""
    rng = np.random.default_rng(0)
    first = pa.table(make_rows(0, rng))
    kind = pq.ParquetWriter if path.suffix == ".parquet" else pacsv.CSVWriter
    with kind(path, first.schema) as writer:
        writer.write_table(first)
        for start in range(CHUNK, ROWS, CHUNK):
            writer.write_table(pa.table(make_rows(start, rng)))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_ten_million_rows_take_less_than_two_gibibytes(
    suffix: str, tmp_path: Path
) -> None:
    source, output = tmp_path / f"a.{suffix}", tmp_path / "o.parquet"
    write_rows(source)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(output)],
        capture_output=True,
        text=True,
        check=True,
    )
    source.unlink()
    output.unlink()
    counts, peak = done.stdout.splitlines()
    print(f"{suffix}: {peak} GiB")
    read, kept, faulty, cut = map(int, counts.split())
    assert read == ROWS and faulty == 0 and kept + cut == ROWS
    assert float(peak) < 2.0, f"{peak} GiB"
