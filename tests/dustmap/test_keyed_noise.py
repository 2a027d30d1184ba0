"""Streams of seeds and purposes share nothing; noise by key depends on the key."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dustmap.keyed_noise import (
    Purpose,
    keyed_normals,
    keyed_uniforms,
    stream,
    torch_stream,
)

SEEDS = (*range(10), 2**32, 2**32 + 1, 2**40, 2**63 - 1, 2**64 - 1)


def grid_of_keys():
    """Neighbours on a grid about the origin, negative ones among them."""
    axis = np.arange(-20, 20)
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda *of: stream(*of).standard_normal(8),
        lambda *of: stream(*of).integers(2**63, size=8),
        lambda *of: torch.randn(8, generator=torch_stream(*of)).double(),
        lambda *of: torch.rand(8, generator=torch_stream(*of), dtype=torch.float64),
    ],
)
def test_no_seed_purpose_or_number_shares_a_draw_with_another(draw):
    every = list(itertools.product(SEEDS, Purpose, range(10)))
    drawn = np.stack([np.asarray(draw(*of)) for of in every])
    # Numbers of single precision meet by chance; two in sequence do not.
    pairs = drawn[:, :-1] + 1j * drawn[:, 1:]
    assert len(np.unique(pairs)) == pairs.size
    assert np.array_equal(drawn[7], np.asarray(draw(*every[7])))


def test_a_stream_is_not_another_one_later_on():
    # The purpose is in the highest word of the counter: no stream runs into the next.
    some = [stream(3, of, 1).standard_normal(100_000) for of in Purpose]
    assert len(np.unique(some)) == len(Purpose) * 100_000


def test_the_words_of_a_torch_generator_are_those_of_its_stream():
    words = stream(2**40 + 5, Purpose.FIT, 3).integers(2**32, size=624)
    twister = np.random.MT19937()
    state = {"key": words.astype(np.uint32), "pos": 624}
    twister.state = {"bit_generator": "MT19937", "state": state}
    generator = torch_stream(2**40 + 5, Purpose.FIT, 3)
    found = torch.randint(2**24, (2000,), generator=generator).numpy()
    assert np.array_equal(found, twister.random_raw(2000) % 2**24)


def test_the_numbers_of_a_key_depend_on_key_seed_and_purpose_alone():
    keys = grid_of_keys()
    found = keyed_normals(keys, 3, 7, Purpose.UNRESOLVED)
    order = np.random.default_rng(0).permutation(len(keys))
    mixed = keyed_normals(keys[order], 3, 7, Purpose.UNRESOLVED)
    assert np.array_equal(mixed, found[:, order])
    alone = keyed_normals(keys[5:6], 2, 7, Purpose.UNRESOLVED)
    assert np.array_equal(alone[:, 0], found[:2, 5])


def test_no_key_seed_or_purpose_shares_a_number_with_another():
    # Among them keys that differ from others' by the difference of two seeds.
    keys = np.array([*itertools.product(range(-3, 12), range(3))])
    found = [
        keyed_uniforms(keys, 4, seed, purpose)
        for seed, purpose in itertools.product(SEEDS, Purpose)
    ]
    assert len(np.unique(found)) == len(found) * found[0].size


def test_keys_next_to_each_other_have_independent_standard_normals():
    keys = grid_of_keys()
    found = keyed_normals(keys, 4, 20, Purpose.NODES)
    assert kstest(found.ravel(), "norm").pvalue > 1e-3
    # 64,000 pairs each: five standard errors.
    assert np.abs(np.corrcoef(found) - np.eye(4)).max() < 0.02
    cube = found.reshape(4, 40, 40, 40)
    for axis in (1, 2, 3):
        pair = cube * np.roll(cube, 1, axis)
        assert abs(pair.mean()) < 5 / np.sqrt(pair.size)
    assert len(np.unique(found)) == found.size


def test_no_key_is_no_number():
    none = np.zeros((0, 3), dtype=np.int64)
    assert keyed_normals(none, 2, 1, Purpose.NODES).shape == (2, 0)
