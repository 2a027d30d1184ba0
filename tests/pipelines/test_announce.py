"""What is kept of every iteration, and what is shown."""

import io

import pytest

from pipelines.announce import Expected, recorder
from pipelines.progress import Progress

KNOWN = Expected(seconds=1e6, samples=32, tolerances={"samples": 1e-2, "mean": 1e-4})


def record_of(stage, value, known):
    records = []
    with Progress(description="inference", stream=io.StringIO()) as progress:
        recorder(records, progress, known)(stage, 3, value)
    return records


@pytest.mark.parametrize(
    ("stage", "tolerance"),
    [
        ("mean", 1e-4),
        ("samples 1-16", 1e-2),
        ("scales mean", None),
        ("starts of samples 1-16", None),
    ],
)
def test_a_residual_has_the_tolerance_its_solve_was_asked_for(stage, tolerance):
    (record,) = record_of(stage, 0.5, KNOWN)
    assert record["residual"] == 0.5 and record["iteration"] == 3
    assert record.get("tolerance") == tolerance
    (record,) = record_of(stage, 0.5, None)
    assert "tolerance" not in record


def test_other_numbers_go_by_their_own_names_and_nan_by_none():
    (record,) = record_of("misfit", 0.5, KNOWN)
    assert record["misfit"] == 0.5 and "residual" not in record
    assert "tolerance" not in record
    assert record_of("preconditioner", float("nan"), KNOWN) == []


def test_time_goes_on_from_the_records_of_before():
    records = [{"stage": "scales", "seconds": 40.0}]
    stream = io.StringIO()
    with Progress(description="inference", stream=stream) as progress:
        recorder(records, progress, KNOWN)("mean", 0, 0.5)
    assert 40.0 <= records[-1]["seconds"] < 100.0
    assert "left=" in stream.getvalue()
    with Progress(description="scales", stream=(plain := io.StringIO())) as progress:
        recorder([], progress)("mean", 0, 0.5)
    assert "left=" not in plain.getvalue()
