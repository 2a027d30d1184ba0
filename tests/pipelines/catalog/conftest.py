"""A small sound catalogue, and a short way to ingest it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_catalogue import MAP, write_csv

from pipelines.catalog.ingest import ingest
from pipelines.catalog.report import IngestReport
from pipelines.catalog.schema import Stars, read_stars


@pytest.fixture
def catalogue() -> dict[str, np.ndarray]:
    """Twenty sound stars by canonical names, in canonical units."""
    rng = np.random.default_rng(1)
    return {
        "source_id": np.arange(20) + 2**60,
        "l": rng.uniform(0, 360, 20),
        "b": rng.uniform(-80, 80, 20),
        "distance": rng.uniform(100, 2000, 20),
        "extinction": rng.uniform(0.1, 2, 20),
        "extinction_error": rng.uniform(0.02, 0.1, 20),
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Stars, IngestReport]]:
    """Ingest a path, or columns by way of a CSV file with every unit stated."""

    def ingest_and_read(source, **options) -> tuple[Stars, IngestReport]:
        if isinstance(source, dict):
            source = write_csv(tmp_path / "source.csv", source)
            options.setdefault("mappings", MAP)
        output = tmp_path / "stars.parquet"
        report = ingest([source], output, **{"overwrite": True, **options})
        return read_stars(output), report

    return ingest_and_read
