"""Iterations as lines of JSON."""

import pytest

from pipelines.storage.metrics import read_metrics


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage": "mean"}\n{"sta\n{"stage": "mean"}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read_metrics(path)
