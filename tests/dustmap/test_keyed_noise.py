"""Noise by key: the same whenever it is asked, and white between keys."""

import numpy as np
import torch
from scipy.stats import kstest

from dustmap.keyed_noise import keyed_normals


def grid_of_keys():
    """Neighbours on a grid about the origin, negative ones among them."""
    axis = torch.arange(-20, 20)
    return torch.cartesian_prod(axis, axis, axis)


def test_the_numbers_of_a_key_depend_on_key_and_seed_alone():
    keys = grid_of_keys()
    found = keyed_normals(keys, 3, 7)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    assert torch.equal(keyed_normals(keys[order], 3, 7), found[:, order])
    assert torch.equal(keyed_normals(keys[5:6], 2, 7)[:, 0], found[:2, 5])
    assert not bool((keyed_normals(keys, 3, 8) == found).any())


def test_keys_next_to_each_other_have_independent_standard_normals():
    keys = grid_of_keys()
    found = keyed_normals(keys, 4, 20).numpy()
    assert kstest(found.ravel(), "norm").pvalue > 1e-3
    # 64,000 pairs each: five standard errors.
    assert np.abs(np.corrcoef(found) - np.eye(4)).max() < 0.02
    cube = found.reshape(4, 40, 40, 40)
    for axis in (1, 2, 3):
        pair = cube * np.roll(cube, 1, axis)
        assert abs(pair.mean()) < 5 / np.sqrt(pair.size)
    assert len(np.unique(found)) == found.size


def test_no_key_is_no_number():
    assert keyed_normals(torch.zeros(0, 3, dtype=torch.int64), 2, 1).shape == (2, 0)
