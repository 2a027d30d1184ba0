"""Identifiers are recognised again, whatever their kind and order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.catalog.identity import SeenIdentifiers, hash_strings

BATCHES = st.lists(st.lists(st.integers(-5, 30), max_size=12), max_size=8)


def first_seen_by_a_set(batches) -> list[list[bool]]:
    seen: set = set()
    return [[not (item in seen or seen.add(item)) for item in b] for b in batches]


@given(BATCHES)
def test_integers_are_new_once(batches) -> None:
    seen = SeenIdentifiers()
    found = [seen.first_seen(np.array(b, np.int64)).tolist() for b in batches]
    assert found == first_seen_by_a_set(batches)


@given(st.lists(st.lists(st.text("abcé ", max_size=20), max_size=12), max_size=8))
def test_strings_are_new_once(batches) -> None:
    seen = SeenIdentifiers()
    found = [seen.first_seen(np.array(b, object)).tolist() for b in batches]
    assert found == first_seen_by_a_set(batches)


def test_a_hash_does_not_depend_on_its_neighbours() -> None:
    alone = hash_strings(np.array(["Gaia DR3 1"], object))
    beside = hash_strings(np.array(["Gaia DR3 1", "a" * 100], object))
    assert alone[0] == beside[0]


def test_many_similar_names_do_not_collide() -> None:
    names = np.array([f"2M{i:014d}" for i in range(200_000)], object)
    assert len(np.unique(hash_strings(names))) == len(names)
