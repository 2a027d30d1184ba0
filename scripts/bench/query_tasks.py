"""One question in a process of its own: ``query_tasks.py MAP TASK COUNT SEED``.

Prints as JSON what it took beyond imports: wall and CPU time [s], the process's peak
memory [GiB], and what it read by system calls [MB], cached by the system or not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.maps.stored import open_store
from pipelines.query import DustMap, open_map

TASKS: dict[str, Callable[[DustMap, SkyCoord], object]] = {
    "extinction": lambda m, c: m.query(c, integrated=True),
    "extinction, flags": lambda m, c: m.query(c, integrated=True, return_flags=True),
    "extinction, all five": lambda m, c: m.extinction(c),
    "density": lambda m, c: m.query(c, integrated=False),
    "density, all five": lambda m, c: m.density(c),
    "distance of 0.5 mag": lambda m, c: m.distance_at(c, 0.5),
}


def main() -> None:
    path, task, count, seed = sys.argv[1:]
    coords = equatorial(Path(path), int(count), int(seed))
    # Frames load their tables when first used.
    open_map(path).query(cast(Any, coords)[:1], integrated=True)
    before, wall, cpu = told("io", "rchar:"), time.perf_counter(), time.process_time()
    TASKS[task](open_map(path), coords)
    facts = {
        "question": task,
        "wall [s]": time.perf_counter() - wall,
        "CPU [s]": time.process_time() - cpu,
        "peak [GiB]": 1024 * told("status", "VmHWM:") / 2**30,
        "read [MB]": (told("io", "rchar:") - before) / 1e6,
    }
    print(json.dumps(facts))


def equatorial(path: Path, count: int, seed: int) -> SkyCoord:
    """Places evenly in the box of a map, as a catalogue has them."""
    box = open_store(path).box
    rng = np.random.default_rng(seed)
    x, y, z = rng.uniform(box.lower, box.upper, size=(count, 3)).T
    cartesian = SkyCoord(
        u=x * u.pc,
        v=y * u.pc,
        w=z * u.pc,
        frame="galactic",
        representation_type="cartesian",
    )
    icrs = cast(Any, cartesian).icrs
    return SkyCoord(ra=icrs.ra, dec=icrs.dec, distance=icrs.distance)


def told(file: str, name: str) -> int:
    """A number that the system keeps of this process since it was started."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/{file} does not say {name}")


if __name__ == "__main__":
    main()
