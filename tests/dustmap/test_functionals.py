"""Functionals as nodes: what they integrate, and that they stay the same."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import truncnorm

from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    FixedStep,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    PointValues,
    Stack,
    StepsOutwards,
)

CENTRE = torch.tensor([60.0, -35.0, 20.0], dtype=torch.float64)
WIDTH = 40.0


def draw_ends(count=40, seed=3):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 2 - 1
    return unit * torch.tensor([200.0, 150.0, 100.0], dtype=torch.float64)


def see(functionals, density):
    """``L_n ρ`` of a density given by a function, values only."""
    nodes = functionals.nodes()
    assert nodes.axes is None
    return nodes.sum_rows(density(nodes.points))


def cloud(x):
    return torch.exp(-0.5 * ((x - CENTRE) ** 2).sum(dim=1) / WIDTH**2)


def cloud_extinction(start, end):
    """Closed form of the cloud's integral along straight segments."""
    length = torch.linalg.vector_norm(end - start, dim=1)
    direction = (end - start) / length[:, None]
    along = ((CENTRE - start) * direction).sum(dim=1)
    across = ((CENTRE - start) ** 2).sum(dim=1) - along**2
    root = math.sqrt(2) * WIDTH
    total = torch.erf((length - along) / root) + torch.erf(along / root)
    height = torch.exp(-0.5 * across / WIDTH**2)
    return height * WIDTH * math.sqrt(math.pi / 2) * total


@pytest.mark.parametrize("elsewhere", [False, True])
def test_rules_integrate_a_gaussian_cloud(elsewhere, generator):
    end = draw_ends()
    start = draw_ends(seed=4) if elsewhere else torch.zeros_like(end)
    exact = cloud_extinction(start, end)
    size = float(exact.max())

    def error(rule):
        rays = LineIntegrals(end, rule, start=start if elsewhere else None)
        return (see(rays, cloud) - exact).abs()

    assert float(error(GaussLegendre(count=24)).max()) < 1e-9 * size
    coarse, fine = (float(error(FixedStep(step=h)).max()) for h in (20.0, 10.0))
    assert fine < 1e-2 * size and fine < 0.3 * coarse
    many = MonteCarlo(count=20_000, seed=1)
    few = MonteCarlo(count=200, seed=2)
    assert float(error(many).mean()) < 0.2 * float(error(few).mean()) < 0.02 * size


def test_a_fixed_step_sees_slab_and_sphere_to_a_step_at_each_face():
    end, step = draw_ends(200), 0.5
    length = torch.linalg.vector_norm(end, dim=1)
    rays = LineIntegrals(end, FixedStep(step=step))
    slab = see(rays, lambda x: (x[:, 2].abs() <= 30.0).to(torch.float64))
    exact = length * (30.0 / end[:, 2].abs()).clamp(max=1.0)
    assert float((slab - exact).abs().max()) <= step
    ball = see(rays, lambda x: (((x - CENTRE) ** 2).sum(1) <= 55.0**2).double())
    along = end @ CENTRE / length
    half = (55.0**2 - CENTRE @ CENTRE + along**2).clamp(min=0).sqrt()
    exact = (torch.minimum(along + half, length) - (along - half).clamp(min=0)).clamp(
        min=0
    )
    assert float(exact.max()) > 80
    assert float((ball - exact).abs().max()) <= 2 * step


def test_weights_of_every_rule_sum_to_the_length(generator):
    end = draw_ends(11)
    for rule in (
        GaussLegendre(count=3),
        FixedStep(step=7.0),
        StepsOutwards(step=7.0),
        MonteCarlo(count=5, seed=3),
    ):
        rays = LineIntegrals(end, rule)
        weights = see(rays, lambda x: torch.ones_like(x[:, 0]))
        assert torch.allclose(weights, rays.lengths, rtol=1e-13)
    steps = torch.bincount(LineIntegrals(end, FixedStep(step=7.0)).nodes().rows)
    assert torch.equal(steps, torch.ceil(rays.lengths / 7.0).long())


def test_steps_outwards_are_those_of_shorter_rays_and_the_rest():
    towards = torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64)
    lengths = torch.tensor([4.0, 13.0, 16.5, 20.0], dtype=torch.float64)
    rays = LineIntegrals(lengths[:, None] * towards, StepsOutwards(step=7.0))
    nodes = rays.nodes()
    found = [
        torch.linalg.vector_norm(nodes.points[nodes.rows == row], dim=1).tolist()
        for row in range(4)
    ]
    expected = [[2.0], [3.5, 10.0], [3.5, 10.5, 15.25], [3.5, 10.5, 17.0]]
    assert [pytest.approx(e) for e in expected] == found
    assert nodes.weights.tolist() == pytest.approx(
        [4.0, 7.0, 6.0, 7.0, 7.0, 2.5, 7.0, 7.0, 6.0]
    )


def test_integrals_by_steps_outwards_rise_with_distance():
    """Of a density that goes straight up and down, and vanishes in between."""
    distance = torch.linspace(1.0, 80.0, 300, dtype=torch.float64)[:, None]
    end = distance * torch.tensor([[0.6, 0.48, 0.64]], dtype=torch.float64)

    def pieces(x):
        along = torch.linalg.vector_norm(x, dim=1)
        return 1 - (along % 16.0 - 8.0).abs() / 8.0

    jitter = see(LineIntegrals(end, FixedStep(step=4.0)), pieces).diff()
    rising = see(LineIntegrals(end, StepsOutwards(step=4.0)), pieces).diff()
    assert float(jitter.min()) < -0.01 and float(rising.min()) > -1e-12


def test_a_ray_without_length_sees_nothing():
    end = torch.zeros(2, 3)
    end[1, 0] = 1.0
    for rule in (GaussLegendre(count=3), FixedStep(step=0.5), StepsOutwards(step=0.5)):
        seen = see(LineIntegrals(end, rule), lambda x: torch.ones_like(x[:, 0]))
        assert seen.tolist() == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("rule", ["legendre", "step", "monte carlo"])
def test_a_selected_ray_keeps_its_nodes(rule, generator):
    end = draw_ends(9)
    rays = LineIntegrals(
        end,
        {
            "legendre": GaussLegendre(count=4),
            "step": FixedStep(step=30.0),
            "monte carlo": MonteCarlo(count=4, seed=4),
        }[rule],
    )
    assert_same_rows(rays.select(torch.tensor([7, 2, 5])), rays, [7, 2, 5])
    # A selection of a selection, and in chunks.
    twice = rays.select(torch.tensor([7, 2, 5])).select(torch.tensor([2, 0]))
    assert_same_rows(twice, rays, [5, 7])
    for part, chunk in rays.chunks(4):
        assert_same_rows(chunk, rays, range(9)[part])


def assert_same_rows(found, whole, rows):
    a, b = found.nodes(), whole.nodes()
    assert len(found) == a.count == len(rows)
    assert bool((a.rows[1:] >= a.rows[:-1]).all())
    for place, row in enumerate(rows):
        mine, theirs = a.rows == place, b.rows == row
        assert torch.equal(a.points[mine], b.points[theirs])
        assert torch.equal(a.weights[mine], b.weights[theirs])
        orders = [
            nodes.axes[chosen] if nodes.axes is not None else -torch.ones(chosen.sum())
            for nodes, chosen in ((a, mine), (b, theirs))
        ]
        assert torch.equal(orders[0].long(), orders[1].long())


def mixed(generator):
    end = draw_ends(5)
    return Stack(
        [
            PointValues(draw_ends(4)),
            Derivatives(draw_ends(3), torch.tensor([0, 2, 1])),
            LineIntegrals(end, MonteCarlo(count=6, seed=5)),
        ]
    )


def test_a_stack_keeps_the_order_of_its_parts_and_of_any_selection(generator):
    stack = mixed(generator)
    assert len(stack) == 12 and stack.dimension == 3
    nodes = stack.nodes()
    assert torch.bincount(nodes.rows).tolist() == [1] * 7 + [6] * 5
    assert nodes.axes[:7].tolist() == [-1] * 4 + [0, 2, 1]
    assert torch.equal(nodes.points[:4], stack.parts[0].points)
    for rows in ([0, 5, 11], [11, 0, 5, 5], [8], [3, 4], list(range(12))):
        assert_same_rows(stack.select(torch.tensor(rows)), stack, rows)
    for part, chunk in stack.chunks(5):
        assert_same_rows(chunk, stack, range(12)[part])
    assert len(stack.select(torch.zeros(0, dtype=torch.int64))) == 0


@pytest.mark.parametrize("row", [-1, 12])
def test_rows_outside_a_stack_are_refused(row, generator):
    with pytest.raises(IndexError):
        mixed(generator).select(torch.tensor([0, row]))


@pytest.mark.wrong_shapes
def test_what_makes_no_sense_is_refused(generator):
    end = draw_ends(3)
    with pytest.raises(ValueError, match="not finite"):
        PointValues(torch.tensor([[0.0, math.nan]]))
    with pytest.raises(ValueError, match=r"shape \(n, d\)"):
        PointValues(torch.zeros(3))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        Derivatives(end, 3)
    with pytest.raises(ValueError, match="one dimension"):
        Stack([PointValues(end), PointValues(end[:, :2])])
    with pytest.raises(ValueError, match="at least one"):
        Stack([])
    with pytest.raises(ValueError, match="count"):
        GaussLegendre(count=0)
    with pytest.raises(ValueError, match="step"):
        FixedStep(step=0.0)


def test_the_nodes_of_a_ray_depend_on_the_ray_and_the_seed():
    end, start = draw_ends(40), 0.1 * draw_ends(40).flip(0)
    rays = LineIntegrals(end, MonteCarlo(count=5, seed=2**40 + 1), start=start)
    points = rays.nodes().points.reshape(40, 5, -1)
    order = torch.arange(39, -1, -3)
    assert torch.equal(rays.select(order).nodes().points.view(14, 5, -1), points[order])
    assert torch.equal(rays.select(order[:1]).nodes().points, points[39])
    # The same place after a change of coordinates.
    near = LineIntegrals(end * (1 + 1e-15), rays.rule, start=start).nodes().points
    torch.testing.assert_close(near.view_as(points), points, rtol=1e-12, atol=1e-12)
    drawn = [
        LineIntegrals(ends, MonteCarlo(count=5, seed=seed), start=first).nodes()
        for seed in (2**40 + 1, 1, 0)
        for ends, first in ((end, start), (end, None), (1.001 * end, None))
    ]
    # Positions along rays: no two rays or seeds have one in common.
    from_start = [
        (each.points - (start if n % 3 == 0 else 0 * start)[each.rows]).norm(dim=1)
        / each.weights
        for n, each in enumerate(drawn)
    ]
    assert len(torch.cat(from_start).mul(1e12).round().unique()) == 9 * 200


def blurred(rule, *, share=0.15, reach=math.inf, count=30):
    """Rays of 20 to 170, of which every sixth has a distance without error."""
    end = draw_ends(count)
    length = torch.linalg.vector_norm(end, dim=1)
    spread = torch.where(torch.arange(count) % 6 > 0, share * length, 0.0)
    limit = torch.full((count,), float("inf")).double()
    return DistanceMarginalizedIntegrals(
        end, spread, torch.minimum(reach * length, limit), rule
    )


def expected_powers(rays, power):
    """``E[d^(p+1)]/(p+1)``: what the density ``s^p`` gives on average."""
    values = []
    for d, sigma, reach in zip(rays.lengths, rays.spread, rays.reach, strict=True):
        d, sigma, reach = float(d), float(sigma), float(reach)
        if sigma == 0:
            moment = d ** (power + 1)
        else:
            top = min(3.0, (reach - d) / sigma)
            moment = truncnorm(-d / sigma, top, loc=d, scale=sigma).moment(power + 1)
        values.append(moment / (power + 1))
    return torch.tensor(values, dtype=torch.float64)


def see_power(rays, power):
    return see(rays, lambda x: torch.linalg.vector_norm(x, dim=1) ** power)


@pytest.mark.parametrize("reach", [math.inf, 1.2])
@pytest.mark.parametrize("share", [0.003, 0.15, 0.6])
def test_uncertain_distances_see_the_expected_extinction(share, reach):
    step = 2.0
    rays = blurred(FixedStep(step=step), share=share, reach=reach)
    constant = expected_powers(rays, 0)
    torch.testing.assert_close(see_power(rays, 0), constant, rtol=1e-9, atol=0)
    for power in (1, 2, 3):
        exact = expected_powers(rays, power)
        # Nodes are up to a quarter of an element beside what is left of it.
        steepest = power * torch.minimum(rays.reach, rays.lengths + 3 * rays.spread)
        allowed = 0.25 * step**2 * steepest ** (power - 1) * power + 1e-3 * exact
        assert bool(((see_power(rays, power) - exact).abs() <= allowed).all())


@pytest.mark.parametrize("power", [0, 1, 2])
def test_random_nodes_see_the_expected_extinction_on_average(power, generator):
    rule = MonteCarlo(count=20_000, seed=7)
    rays = blurred(rule, reach=1.2)
    exact = expected_powers(rays, power)
    assert float((see_power(rays, power) / exact - 1).abs().max()) < 0.04
    assert float((see_power(rays, power) / exact - 1).abs().mean()) < 0.01


@pytest.mark.parametrize("rule", [GaussLegendre(count=4), FixedStep(step=7.0)])
def test_nearly_certain_distances_are_plain_line_integrals(rule):
    # Errors that are far smaller than a path element are no reason to miss it.
    end = draw_ends(30)
    plain = see_power(LineIntegrals(end, rule), 1)
    length = torch.linalg.vector_norm(end, dim=1)
    certain = DistanceMarginalizedIntegrals(end, 0 * length, 1.3 * length, rule)
    for name in ("points", "weights", "rows"):
        found = getattr(certain.nodes(), name)
        assert torch.equal(found, getattr(LineIntegrals(end, rule).nodes(), name))
    nearly = DistanceMarginalizedIntegrals(end, 1e-4 * length, 1.3 * length, rule)
    torch.testing.assert_close(see_power(nearly, 1), plain, rtol=1e-3, atol=0)


@pytest.mark.parametrize("reach", [1.0, 1.1, math.inf])
def test_no_node_lies_beyond_reach_or_three_deviations(reach):
    for rule in (FixedStep(step=3.0), GaussLegendre(count=9)):
        rays = blurred(rule, reach=reach)
        nodes = rays.nodes()
        along = torch.linalg.vector_norm(nodes.points, dim=1)
        farthest = torch.minimum(rays.reach, rays.lengths + 3 * rays.spread)
        assert bool((along <= farthest[nodes.rows]).all())
        beyond = along > rays.lengths[nodes.rows]
        assert bool(beyond.any()) == (reach > 1)
        assert float(nodes.weights.min()) > -1e-12
        whole = LineIntegrals((farthest / rays.lengths)[:, None] * rays.end, rule)
        assert bool((nodes.weights <= whole.nodes().weights * (1 + 1e-9)).all())


def test_selected_uncertain_rays_keep_their_nodes(generator):
    for rule in (FixedStep(step=7.0), MonteCarlo(count=6, seed=8)):
        rays = blurred(rule, reach=1.2)
        nodes = rays.nodes()
        index = torch.tensor([17, 3, 0, 29])
        part = rays.select(index).select(torch.tensor([1, 0])).nodes()
        assert part.count == 2
        for row, number in enumerate((3, 17)):
            chosen, own = nodes.rows == number, part.rows == row
            assert torch.equal(part.points[own], nodes.points[chosen])
            torch.testing.assert_close(
                part.weights[own], nodes.weights[chosen], rtol=1e-9, atol=1e-10
            )


@pytest.mark.parametrize(("spread", "reach"), [(-0.1, 2.0), (0.1, 0.5)])
def test_uncertain_distances_that_cannot_be_are_refused(spread, reach):
    end = torch.tensor([[1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="spread"):
        DistanceMarginalizedIntegrals(
            end, torch.tensor([spread]), torch.tensor([reach]), FixedStep(step=0.1)
        )
