"""Mean functions against closed forms and autograd."""

from __future__ import annotations

import math

import pytest
import torch

import dustmap.models.means as subject
from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.models.means import ConstantMean, ExponentialDisc

DISC = ExponentialDisc(
    value=2.0, scale_height=0.1, scale_length=2.5, centre_distance=8.0
)


def draw(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, 3), generator=generator, dtype=torch.float64) * 2 - 1


def test_a_constant_mean_is_seen_as_itself_its_length_and_no_gradient():
    points = draw(4)
    rays = LineIntegrals(points, GaussLegendre(count=3))
    seen = Stack([PointValues(points), rays, Derivatives(points, 1)])
    expected = torch.cat([torch.full((4,), 0.7), 0.7 * rays.lengths, torch.zeros(4)])
    assert torch.allclose(ConstantMean(value=0.7).observed(seen), expected)
    assert ConstantMean().observed(rays).tolist() == [0.0] * 4


def test_the_disc_has_its_value_at_the_observer_and_falls_by_its_scales():
    places = torch.tensor(
        [[0, 0, 0], [0, 0, 0.1], [0, 0, -0.1], [-2.5, 0, 0], [8, 8, 0]],
        dtype=torch.float64,
    )
    inverse_e = 2 / math.e
    assert DISC(places).tolist() == pytest.approx(
        [2, inverse_e, inverse_e, inverse_e, 2]
    )


def test_integrals_of_the_disc_upwards_and_inwards_are_closed_forms():
    end = torch.tensor([[0, 0, 0.3], [0, 0, -0.2], [4, 0, 0], [-3, 0, 0]]).double()
    found = DISC.observed(LineIntegrals(end, GaussLegendre(count=30)))
    up = [2 * 0.1 * (1 - math.exp(-d / 0.1)) for d in (0.3, 0.2)]
    along = [2 * 2.5 * (math.exp(1.6) - 1), 2 * 2.5 * (1 - math.exp(-1.2))]
    assert found.tolist() == pytest.approx(up + along)


def test_gradients_of_the_disc_are_those_of_autograd_and_of_the_formula():
    points = draw(30)
    axes = torch.arange(30) % 3
    found = DISC.observed(Derivatives(points, axes))
    x = points.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(DISC(x).sum(), x)
    assert torch.allclose(found, gradient[torch.arange(30), axes])
    radius = torch.sqrt((points[:, 0] - 8) ** 2 + points[:, 1] ** 2)
    by_hand = torch.stack(
        [
            -(points[:, 0] - 8) / radius / 2.5,
            -points[:, 1] / radius / 2.5,
            -torch.sign(points[:, 2]) / 0.1,
        ]
    )
    expected = DISC(points) * by_hand[axes, torch.arange(30)]
    assert torch.allclose(found, expected)


def test_values_gradients_and_integrals_mix_and_chunks_change_nothing(monkeypatch):
    points = draw(5)
    rays = LineIntegrals(points, GaussLegendre(count=4))
    parts = [Derivatives(points, 2), rays, PointValues(points)]
    whole = DISC.observed(Stack(parts))
    assert torch.equal(whole, torch.cat([DISC.observed(p) for p in parts]))
    monkeypatch.setattr(subject, "rows_within", lambda *_: 2)
    assert torch.equal(DISC.observed(Stack(parts)), whole)
    assert not whole.requires_grad


def test_a_disc_that_is_none_is_refused():
    right = {"scale_height": 0.1, "scale_length": 2.5, "centre_distance": 8.0}
    for name in right:
        for wrong in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match=name):
                ExponentialDisc(value=1.0, **{**right, name: wrong})
    with pytest.raises(ValueError, match="3-D"):
        DISC(torch.zeros(3, 2))
