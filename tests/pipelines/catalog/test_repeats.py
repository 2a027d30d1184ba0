"""Identifiers are recognised again, whatever their kind and order."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.catalog import repeats
from pipelines.catalog.repeats import find_repeated
from pipelines.catalog.sorted_runs import (
    hash_identifiers,
    mark_repeated,
    read_run,
    write_runs,
)

INTEGERS = st.lists(st.lists(st.integers(-5, 30), max_size=12), max_size=8)
STRINGS = st.lists(st.lists(st.text("abcé ", max_size=20), max_size=12), max_size=8)


def repeated_by_a_set(batches) -> list[list[bool]]:
    seen: set = set()
    return [[item in seen or bool(seen.add(item)) for item in b] for b in batches]


def repeated_in_runs(batches, kind) -> list[list[bool]]:
    with TemporaryDirectory() as folder:
        runs = []
        for number, batch in enumerate(batches):
            columns = {"source_id": np.array(batch, kind), "l": np.arange(len(batch))}
            stem = Path(folder) / f"run{number}"
            runs += write_runs(stem, [columns], over_sky=False)[0]
        repeated = find_repeated(map, runs)
        assert not repeated.across.any() and not repeated.pairs
        for which, each in enumerate(runs):
            mark_repeated(each, repeated.places(which)[0])
        marked = len(repeated.rows)
        left = [read_run(each.stem)["l"].to_numpy() for each in runs]
    rows = [~np.isin(np.arange(len(b)), kept) for b, kept in zip(batches, left)]
    assert marked == sum(each.sum() for each in rows)
    return [each.tolist() for each in rows]


@pytest.mark.parametrize("at_once", [5, 1000])
@settings(deadline=None, max_examples=25)
@given(INTEGERS)
def test_integers_are_new_once(at_once: int, batches) -> None:
    batches = [batch for batch in batches if batch]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_HASHES_AT_ONCE", at_once)
        assert repeated_in_runs(batches, np.int64) == repeated_by_a_set(batches)


@settings(deadline=None, max_examples=25)
@given(STRINGS)
def test_strings_are_new_once(batches) -> None:
    batches = [batch for batch in batches if batch]
    assert repeated_in_runs(batches, object) == repeated_by_a_set(batches)


def test_a_hash_does_not_depend_on_its_neighbours() -> None:
    alone = hash_identifiers(np.array(["Gaia DR3 1"], object))
    beside = hash_identifiers(np.array(["Gaia DR3 1", "a" * 100], object))
    assert alone[0] == beside[0]


def test_many_similar_names_do_not_collide() -> None:
    names = np.array([f"2M{i:014d}" for i in range(200_000)], object)
    assert len(np.unique(hash_identifiers(names))) == len(names)
