"""Frames, safe points, and states that do not fit."""

from __future__ import annotations

import pytest
import torch

from dustmap.journal import Journal, like


def counting(journal, upto=5):
    """Sums of 0, 1, …, each number added in two halves by a loop inside."""
    totals = torch.zeros(upto, dtype=torch.float64)
    first = 0
    with journal.frame("numbers") as frame:
        known = frame.take({"totals": like(totals), "first": int})
        if known is not None:
            totals, first = known["totals"].clone(), known["first"]
        number = first
        frame.expose(lambda: {"totals": totals, "first": number})
        for number in range(first, upto):
            added = halves(journal, number)
            totals[number:] += added
            if number + 1 < upto:
                number += 1
                journal.safe_point()
    return totals


def halves(journal, number):
    with journal.frame("halves") as frame:
        known = frame.take({"done": int, "sum": float})
        done, total = (known["done"], known["sum"]) if known else (0, 0.0)
        frame.expose(lambda: {"done": done, "sum": total})
        while done < 2:
            total, done = total + number / 2, done + 1
            journal.safe_point()
    return total


def copied(state):
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }


def every_state(run):
    states = []
    journal = Journal(save=lambda s: states.append(copied(s)), due=lambda: True)
    return run(journal), states


def test_a_loop_goes_on_from_every_safe_point():
    whole, states = every_state(counting)
    assert len(states) == 14
    for state in states:
        journal = Journal(save=pytest.fail, due=lambda: False, restored=state)
        assert torch.equal(counting(journal), whole)


def test_nested_frames_make_paths():
    _, states = every_state(counting)
    assert set(states[0]) == {
        "numbers/totals",
        "numbers/first",
        "numbers/halves/done",
        "numbers/halves/sum",
    }
    assert set(states[2]) == {"numbers/totals", "numbers/first"}


def test_a_silent_journal_computes_no_state():
    journal = Journal.silent()
    with journal.frame("loop") as frame:
        frame.expose(pytest.fail)
        journal.safe_point()
    assert journal.path == ""


def test_an_error_closes_the_frames_it_passes():
    journal, paths = Journal.silent(), []

    def fails():
        with journal.frame("a"), journal.frame("b"):
            paths.append(journal.path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [*paths, journal.path] == ["a/b", ""]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"numbers/first": 1.0}, r"numbers/first should be one int, found one float"),
        ({"numbers/first": True}, r"numbers/first should be one int, found one bool"),
        ({"numbers/first": None}, r"numbers/first should be one int, found nothing"),
        (
            {"numbers/totals": torch.zeros(5)},
            r"totals should be a float64 .* \(5\), found a float32 tensor",
        ),
        (
            {"numbers/totals": torch.zeros(4, dtype=torch.float64)},
            r"shape \(5\), found a float64 tensor of shape \(4\)",
        ),
        ({"numbers/more": 2}, r"numbers/more should be nothing, found one int \(2\)"),
        ({"other/first": 2}, r"other/first should be nothing"),
        ({"numbers/halves/done": None}, r"halves/done should be one int, found noth"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(change, said):
    _, states = every_state(counting)
    state = {**states[0], **change}
    state = {key: value for key, value in state.items() if value is not None}
    journal = Journal(save=pytest.fail, due=lambda: True, restored=state)
    with pytest.raises(ValueError, match=said):
        counting(journal)


def test_what_nobody_asked_for_is_refused_at_the_end_at_the_latest():
    journal = Journal(save=pytest.fail, due=lambda: False, restored={"b/x": 1})
    with pytest.raises(ValueError, match="b/x should be nothing"), journal.frame("a"):
        pass


def test_a_part_is_there_whole_or_not_at_all():
    pattern = {"number": int}
    part = {"x": float, "y": float}
    for more in [{}, {"end.x": 1.0, "end.y": 2.0}]:
        restored = {"a/number": 1} | {f"a/{k}": v for k, v in more.items()}
        journal = Journal(save=pytest.fail, due=lambda: False, restored=restored)
        with journal.frame("a") as frame:
            assert frame.take(pattern, end=part) == {"number": 1, **more}
    half = Journal(
        save=pytest.fail, due=lambda: False, restored={"a/number": 1, "a/end.x": 1.0}
    )
    with pytest.raises(ValueError, match=r"a/end\.y"), half.frame("a") as frame:
        frame.take(pattern, end=part)


@pytest.mark.parametrize("value", [float("nan"), torch.tensor([1.0, float("inf")])])
def test_a_number_that_is_not_finite_is_never_saved(value):
    journal = Journal(save=pytest.fail, due=lambda: True)
    with journal.frame("a"), journal.frame("b") as frame:
        frame.expose(lambda: {"x": value})
        with pytest.raises(FloatingPointError, match="a/b/x"):
            journal.safe_point()


def test_while_things_are_made_again_what_was_restored_is_saved_again():
    _, states = every_state(counting)
    saved = []
    journal = Journal(save=saved.append, due=lambda: True, restored=states[4])
    with journal.frame("numbers"):
        journal.safe_point(remaking=True)
        assert saved[-1].keys() == states[4].keys()
        assert all(saved[-1][key] is value for key, value in states[4].items())
        with pytest.raises(ValueError, match="halves/done should be nothing"):
            journal.safe_point()
        with journal.frame("halves"):
            journal.safe_point(remaking=True)
            assert saved[-1] == {}


def test_saved_tensors_are_contiguous_and_share_no_memory():
    x = torch.arange(6.0).reshape(2, 3)
    with (journal := Journal.silent()).frame("a") as frame:
        frame.expose(lambda: {"x": x, "same": x, "row": x[0], "turned": x.mT})
        state = journal.state()
    pointers = {value.untyped_storage().data_ptr() for value in state.values()}
    assert len(pointers) == 4
    assert all(value.is_contiguous() for value in state.values())
    assert state["a/x"].data_ptr() == x.data_ptr()
    assert torch.equal(state["a/turned"], x.mT)
    assert state["a/row"].untyped_storage().nbytes() == 12
