"""Gradients by hyperparameters against differences of the model's own predictions."""

from __future__ import annotations

import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.grid import Grid, Torus
from dustmap.kernels import Constant, Matern12, Matern32, SquaredExponential
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean, ExponentialDisc
from dustmap.whitening import TorusWhitening

# Odd and even sizes: they fold differently.
BOX = {1: (8,), 2: (5, 6), 3: (3, 4, 3)}
TORUS = {1: (11,), 2: (8, 7), 3: (5, 6, 4)}
DISC = ExponentialDisc(
    value=0.7, scale_height=0.8, scale_length=3.0, centre_distance=8.0, midplane=0.1
)


def observed(grid: Grid) -> Stack:
    generator = torch.Generator().manual_seed(3)
    lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)

    def draw(count):
        unit = torch.rand(count, grid.dimension, generator=generator)
        return (lower + unit * (upper - lower)).double()

    rays = LineIntegrals(draw(5), GaussLegendre(count=4), start=draw(1))
    return Stack([rays, PointValues(draw(4))])


def model_of(kernel, dimension=2, refinement=1, mean=None, **options) -> TorusGaussian:
    spacing = (1.0, 0.8, 1.2)[:dimension]
    grid = Grid(shape=BOX[dimension], spacing=spacing, origin=(-1.0,) * dimension)
    torus = Torus(grid=grid, shape=TORUS[dimension])
    return TorusGaussian(
        TorusWhitening(kernel, torus, refinement=refinement),
        observed(grid),
        mean=mean,
        residual_count=3,
        generator=torch.Generator().manual_seed(7),
        **options,
    )


def weights_of(model: TorusGaussian, rows: int = 3):
    generator = torch.Generator().manual_seed(5)
    n, p = len(model.functionals), model.latent_size
    return [
        torch.randn(rows, size, generator=generator, dtype=torch.float64)
        for size in (p, n, n)
    ]


def weighed(model: TorusGaussian, eps, a, b) -> float:
    return float((a * model.apply(eps)).sum() + (b * model.variance).sum())


def worst_error(model: TorusGaussian, step: float = 1e-3) -> float:
    """Gradients against five-point differences, one entry after the other."""
    eps, a, b = weights_of(model)
    found = model.parameter_gradient(eps, a, b)
    values = model.parameters()
    assert set(found) == set(values)
    errors = []
    for name, value in values.items():
        assert found[name].shape == value.shape
        for place in range(value.numel()):

            def at(steps, name=name, value=value, place=place):
                changed = value.clone()
                changed.view(-1)[place] += steps * step * value.reshape(-1)[place]
                return weighed(model.with_parameters({name: changed}), eps, a, b)

            derivative = (8 * (at(1) - at(-1)) - at(2) + at(-2)) / (12 * step)
            exact = derivative / float(value.reshape(-1)[place])
            errors.append(abs(float(found[name].reshape(-1)[place]) / exact - 1))
    return max(errors)


REFINEMENTS = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 4), (3, 3)]
# Few in 3-D: what takes time is the kernel on a small torus, with all its images.
CASES = [(d, r, q) for d in (1, 2) for r, q in REFINEMENTS] + [(3, 1, 2), (3, 2, 2)]


@pytest.mark.parametrize(("dimension", "refinement", "residual_refinement"), CASES)
def test_gradients_are_those_of_predictions_and_variances(
    dimension, refinement, residual_refinement
):
    scales = [0.9, 1.1, 0.8][:dimension]
    model = model_of(
        Matern32(lengthscale=scales, variance=2.0),
        dimension,
        refinement,
        residual_refinement=residual_refinement,
        mean=ConstantMean(value=0.4),
    )
    assert worst_error(model) < 1e-7


@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
def test_one_lengthscale_and_sums_of_kernels_have_gradients_too(interpolation):
    kernel = Matern32(lengthscale=1.4) + Matern12(lengthscale=0.7, variance=0.3)
    model = model_of(
        kernel + Constant(variance=0.2),
        interpolation=interpolation,
        residual_refinement=2,
    )
    names = {"0.0.lengthscale", "0.1.lengthscale", "0.1.variance", "1.variance"}
    assert set(model.parameters()) > names
    assert worst_error(model) < 1e-7


def test_the_disc_is_learnt_with_its_height():
    model = model_of(Matern32(lengthscale=0.8), 3, mean=DISC)
    assert {"mean", "scale_height"} < set(model.parameters())
    assert worst_error(model) < 1e-7


def test_dropped_modes_have_no_gradient():
    # A rounded-off mode moves in and out of the kept ones as θ moves, hence the
    # tolerance; a division by one of them would give infinities.
    model = model_of(SquaredExponential(lengthscale=2.2), 1, residual_refinement=2)
    assert model.whitening.report.dropped_modes == 0
    assert model.whitening.refined(2).report.dropped_fine_modes > 0
    assert worst_error(model, step=1e-5) < 1e-4


def test_what_weighs_nothing_is_not_computed():
    model = model_of(Matern32(lengthscale=1.4), residual_refinement=2)
    eps, a, b = weights_of(model)
    both = model.parameter_gradient(eps, a, b)
    first = model.parameter_gradient(eps, a, torch.zeros_like(b))
    second = model.parameter_gradient(eps, torch.zeros_like(a), b)
    for name, value in both.items():
        torch.testing.assert_close(first[name] + second[name], value)
    nothing = model.parameter_gradient(eps, 0 * a, 0 * b)
    assert all(float(value.abs().max()) == 0 for value in nothing.values())


def test_single_precision_gives_the_gradient_to_single_precision():
    kernel = Matern32(lengthscale=1.4, variance=2.0)
    double = model_of(kernel, 2, 2, mean=ConstantMean(value=0.4))
    grid = double.whitening.torus
    single = TorusGaussian(
        TorusWhitening(kernel, grid, refinement=2, dtype=torch.float32),
        double.functionals,
        mean=double.mean,
        residual_count=3,
        generator=torch.Generator().manual_seed(7),
    )
    eps, a, _ = weights_of(double)
    exact = double.parameter_gradient(eps, a, 0 * a)
    found = single.parameter_gradient(eps.float(), a.float(), 0 * a.float())
    for name, value in exact.items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=0)


def test_other_parameters_keep_the_draws_and_the_weights():
    model = model_of(
        Matern32(lengthscale=1.4, variance=2.0),
        residual_refinement=2,
        mean=ConstantMean(value=0.4),
    )
    larger = model.with_parameters({"variance": torch.tensor(8.0)})
    assert larger.weights is model.weights
    # With the same white draws the variance is exactly four times as large.
    torch.testing.assert_close(larger.variance, 4 * model.variance)
    doubled = model.with_parameters({"mean": torch.tensor(0.8)})
    torch.testing.assert_close(doubled.offset, 2 * model.offset)
    assert doubled.whitening is model.whitening
    assert float(model.parameters()["mean"]) == 0.4


def test_a_mean_that_is_not_positive_is_no_hyperparameter():
    model = model_of(Matern32(lengthscale=1.4), mean=ConstantMean(value=-0.4))
    assert set(model.parameters()) == {"lengthscale", "variance"}


def test_unknown_and_negative_parameters_are_refused():
    model = model_of(Matern32(lengthscale=1.4), mean=ConstantMean(value=0.4))
    with pytest.raises(ValueError, match="length"):
        model.with_parameters({"length": torch.tensor(1.0)})
    with pytest.raises(ValueError, match="positive"):
        model.with_parameters({"mean": torch.tensor(-1.0)})
