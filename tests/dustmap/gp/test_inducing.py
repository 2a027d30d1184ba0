"""Subsets of rows in groups of near neighbours."""

import pytest
import torch

from dustmap.gp.inducing import clustered_subset


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def points(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 1000 * torch.rand(count, 3, generator=generator, dtype=torch.float64)


def test_a_subset_has_the_size_that_was_asked_for_and_no_row_twice(generator):
    for count, size, neighbours in ((5000, 320, 8), (400, 320, 8), (50, 33, 40)):
        rows = clustered_subset(points(count), size, neighbours, generator)
        assert len(rows) == size and len(torch.unique(rows)) == size
        assert int(rows.min()) >= 0 and int(rows.max()) < count


def test_equal_positions_give_unique_rows(generator):
    rows = clustered_subset(torch.ones(300, 3), 64, 8, generator)
    assert len(torch.unique(rows)) == 64


def nearest(x):
    return torch.cdist(x, x).fill_diagonal_(float("inf")).min(dim=1).values


def test_a_subset_holds_close_pairs_and_far_ones(generator):
    x = points(5000)
    rows = clustered_subset(x, 320, 8, generator)
    uniform = torch.randperm(5000, generator=generator)[:320]
    chosen = nearest(x[rows]).median()
    # Most members have their true nearest neighbours beside them.
    assert float(chosen) < 1.5 * float(nearest(x).median())
    assert float(chosen) < 0.6 * float(nearest(x[uniform]).median())
    spread = x[rows].std(dim=0) / x.std(dim=0)
    assert float(spread.min()) > 0.75 and float(spread.max()) < 1.25


def test_the_seed_decides_the_subset():
    x = points(2000)
    one, again, other = (
        clustered_subset(x, 64, 8, torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
