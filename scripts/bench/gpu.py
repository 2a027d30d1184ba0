"""Runs the parts of the GPU benchmark, each in a process of its own within its time.

A fault of one part (a CUDA error ends its process) leaves the others alone. Rows are
written when they are measured: ``gpu.json`` and ``gpu.md`` hold all of them so far.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

NEEDED = ("torch", "numpy", "scipy", "numba", "jaxtyping")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    print(
        f"gpu.sh needs {', '.join(missing)}: this Python ({sys.executable}) has no "
        "such module; PYTHON=... chooses another",
        file=sys.stderr,
    )
    sys.exit(2)

import torch  # noqa: E402
from gpu_table import Table, facts  # noqa: E402

# Parts in their order, the module of each, and the share of the time that it may take;
# what one leaves over is the others'.
PARTS = {
    "checks": ("gpu_parts", 0.15),
    "whitening": ("gpu_parts", 0.1),
    "levels": ("gpu_parts", 0.1),
    "sight_lines": ("gpu_parts", 0.15),
    "iteration": ("gpu_parts", 0.1),
    "stages": ("gpu_stages", 0.1),
    "inference": ("gpu_maps", 0.2),
    "rows": ("gpu_maps", 0.05),
    "ranks": ("gpu_ranks", 0.05),
}


def main() -> int:
    """Exit status: 0 all measured (or no CUDA here), 1 a part failed, 2 no module."""
    options = _parser().parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA device here, nothing was measured "
              "(--device cpu runs the same smaller)")  # fmt: skip
        return 0
    table = Table(options.out)
    table.begin(facts(options.device))
    started = time.monotonic()
    parts = options.parts or list(PARTS)
    failed = []
    for part in parts:
        weights = [PARTS[p][1] for p in parts[parts.index(part) :]]
        left = 60 * options.minutes - (time.monotonic() - started)
        seconds = left * weights[0] / sum(weights)
        print(f"== {part} (at most {seconds:.0f} s)", flush=True)
        if not _ran(part, options, seconds):
            failed.append(part)
    print(f"{time.monotonic() - started:.0f} s in all: {table.page}")
    if failed:
        print(f"failed or out of time: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _ran(part: str, options: argparse.Namespace, seconds: float) -> bool:
    """Whether a part came to its end in time; what it measured is written anyway."""
    command = [
        sys.executable,
        str(Path(__file__).with_name(f"{PARTS[part][0]}.py")),
        part,
        options.device,
        f"{max(1.0, 0.85 * seconds):.0f}",
        str(options.out),
        str(options.smaller or (1 if options.device == "cuda" else 100)),
    ]
    try:
        status = subprocess.run(command, timeout=max(5.0, seconds)).returncode
    except subprocess.TimeoutExpired:
        Table(options.out).add(part, {"what": "stopped", "note": f"{seconds:.0f} s"})
        return False
    if status:
        Table(options.out).add(part, {"what": "failed", "note": f"status {status}"})
    return status == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_bench"))
    parser.add_argument(
        "--smaller",
        type=int,
        help="divides points and stars; by default 1 on CUDA and 100 on a CPU",
    )
    parser.add_argument("--parts", nargs="*", choices=list(PARTS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
