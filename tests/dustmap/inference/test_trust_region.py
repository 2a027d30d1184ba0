"""Newton's step in a trust region."""

from __future__ import annotations

import math

import pytest
import torch

from dustmap.inference.scales.trust_region import (
    expected_gain,
    secant_information,
    standard_errors,
    trusted_step,
)

A = torch.tensor([[4.0, 1.0], [1.0, 0.5]], dtype=torch.float64)
G = torch.tensor([0.3, -0.2], dtype=torch.float64)
ALL = torch.tensor([True, True])


def test_a_short_step_is_newtons():
    exact = torch.linalg.solve(A, G)
    step = trusted_step(G, A, ALL, 10.0)
    torch.testing.assert_close(step, exact, rtol=1e-9, atol=0)
    assert expected_gain(G, A, ALL) == pytest.approx(0.5 * float(G @ exact))


def test_a_long_step_ends_on_the_boundary_and_goes_uphill():
    step = trusted_step(G, A, ALL, 0.1)
    assert float(step.abs().max()) == pytest.approx(0.1)
    assert float(step @ G) > 0
    # It is a Levenberg step: A s + λ s = g.
    shift = (G - A @ step) / step
    assert float(shift[0]) == pytest.approx(float(shift[1]), rel=1e-6)


def test_directions_that_are_held_stay():
    step = trusted_step(G, A, torch.tensor([True, False]), 10.0)
    assert step.tolist() == pytest.approx([0.3 / 4, 0.0])
    held = torch.tensor([False, False])
    assert trusted_step(G, A, held, 1.0).tolist() == [0.0, 0.0]
    assert expected_gain(G, A, held) == 0.0


def test_a_slope_without_curvature_is_followed_to_the_boundary():
    step = trusted_step(G, torch.zeros(2, 2, dtype=torch.float64), ALL, 0.5)
    assert float(step.abs().max()) == pytest.approx(0.5)
    torch.testing.assert_close(step / step.norm(), G / G.norm())
    none = trusted_step(torch.zeros_like(G), torch.zeros(2, 2).double(), ALL, 0.5)
    assert none.tolist() == [0.0, 0.0]


def test_what_the_information_does_not_know_has_no_finite_error():
    expected = torch.linalg.inv(A).diagonal().sqrt()
    torch.testing.assert_close(standard_errors(A), expected)
    silent = torch.zeros(3, 3, dtype=torch.float64)
    silent[:2, :2] = A
    found = standard_errors(silent)
    torch.testing.assert_close(found[:2], expected)
    assert math.isinf(float(found[2]))


def test_the_curvature_that_a_step_saw_is_taken_over():
    step = torch.tensor([0.2, -0.5], dtype=torch.float64)
    seen = torch.tensor([0.1, -0.3], dtype=torch.float64)
    updated = secant_information(A, step, seen)
    torch.testing.assert_close(updated @ step, seen)
    assert float(torch.linalg.eigvalsh(updated).min()) > 0
    torch.testing.assert_close(secant_information(A, step, A @ step), A)
    # Curvature of the wrong sign tells that the step was too long, not how it is here.
    assert secant_information(A, step, -seen) is A
