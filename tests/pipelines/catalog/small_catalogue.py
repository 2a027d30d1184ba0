"""What the tests of catalogues share: columns, units and a plain writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

UNITS = {
    "l": "deg",
    "b": "deg",
    "distance": "pc",
    "extinction": "mag",
    "extinction_error": "mag",
}
MAP = [f"{name}={name}:{unit}" for name, unit in UNITS.items()]


def write_csv(path: Path, columns: dict[str, np.ndarray]) -> Path:
    rows = zip(*(np.asarray(column, dtype=object) for column in columns.values()))
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
