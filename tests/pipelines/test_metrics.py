"""Iterations on the disk as they come."""

import errno
import os

import pytest

from pipelines.storage.metrics import Metrics, read_metrics

RECORDS = [{"stage": "mean", "iteration": i, "residual": 0.1**i} for i in range(4)]


def test_a_record_can_be_read_as_soon_as_it_is_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for count, record in enumerate(RECORDS, start=1):
        metrics.append(record)
        assert read_metrics(path) == RECORDS[:count]
    metrics.close()


def test_a_torn_last_line_is_no_record_and_is_not_gone_on_from(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for record in RECORDS:
        metrics.append(record)
    metrics.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_metrics(path) == RECORDS[:3]
    again = Metrics(path, known=3)
    again.append(RECORDS[3])
    again.close()
    assert path.read_bytes() == whole


def test_what_came_after_the_checkpoint_comes_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Metrics(path)
    for record in RECORDS:
        first.append(record)
    first.close()
    again = Metrics(path, known=2)
    assert again.data == read_metrics(path) == RECORDS[:2]
    again.close()


def test_records_that_are_missing_are_said(tmp_path, capsys):
    Metrics(tmp_path / "metrics.jsonl", known=2).close()
    assert "of 2 records before the checkpoint 0 are left" in capsys.readouterr().err


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage": "mean"}\n{"sta\n{"stage": "mean"}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read_metrics(path)


def test_a_full_disk_is_said_once_and_the_records_are_kept(tmp_path, capsys):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(RECORDS[0])
    stream = metrics._stream

    class Full:
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self):
            stream.close()

    metrics._stream = Full()
    for record in RECORDS[1:]:
        metrics.append(record)
    metrics.close()
    assert metrics.data == RECORDS
    assert capsys.readouterr().err.count("no longer written") == 1
