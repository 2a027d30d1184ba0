"""The checkers let the right through and catch what is wrong by a little."""

from __future__ import annotations

import copy

import pytest
import torch
from forward_models import check_forward_model
from linear_operators import check_linear_operator
from operators import FunctionOperator

from dustmap.functionals import PointValues
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32
from dustmap.linalg.operator import LinearOperator
from dustmap.models.base import Linearisation
from dustmap.models.gaussian import TorusGaussian
from dustmap.whitening import TorusWhitening


def operator_of(A, B=None, dtype=torch.float64):
    B = A.mT if B is None else B
    rows, columns = A.shape
    return FunctionOperator(
        (rows, columns), lambda x: x @ A.mT, lambda y: y @ B.mT, dtype=dtype
    )


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_a_wrong_adjoint_is_caught_at_any_scale(scale, generator):
    A = scale * torch.randn(6, 9, generator=generator, dtype=torch.float64)
    check_linear_operator(operator_of(A), generator=generator)
    wrong = A.mT.clone()
    wrong[4, 2] *= 1 + 1e-6
    with pytest.raises(AssertionError, match="adjoint is wrong"):
        check_linear_operator(operator_of(A, wrong), generator=generator)


def test_orthogonal_ranges_raise_no_false_alarm(generator):
    # ⟨Au, v⟩ is zero to rounding: relative to itself any error would be large.
    A = torch.zeros(40, 40, dtype=torch.float64)
    A[0, 0] = 1.0
    rotation = torch.linalg.qr(torch.randn(40, 40, generator=generator).double()).Q
    check_linear_operator(operator_of(rotation @ A @ rotation.mT), generator=generator)
    zero = operator_of(torch.zeros(3, 5, dtype=torch.float64))
    check_linear_operator(zero, generator=generator)


class Faulty(LinearOperator):
    """Three times the identity, but for one fault."""

    def __init__(self, fault):
        self.fault = fault
        self.shape = (4, 4)
        self.dtype = torch.float64
        self.device = torch.device("cpu")

    def matvec(self, x):
        y = 3 * x
        if self.fault == "affine":
            return y + 1e-6
        if self.fault == "quadratic":
            return y + 1e-6 * x**2
        if self.fault == "dtype":
            return y.float()
        if self.fault == "shape":
            return y[..., :3]
        if self.fault == "nan":
            return y / torch.zeros_like(y)
        if self.fault == "in place":
            x *= 3
            return x.clone()
        if self.fault == "batch" and x.ndim == 3:
            return y.flip(0)
        return y

    def rmatvec(self, y):
        return 3 * y

    def to_dense(self):
        dense = 3 * torch.eye(4, dtype=torch.float64)
        if self.fault == "dense":
            dense[0, 3] = 1e-6
        return dense


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("affine", "adjoint|linearity"),
        ("quadratic", "adjoint|linearity"),
        ("dtype", "float32"),
        ("shape", "expected"),
        ("nan", "not finite"),
        ("in place", "changed its argument"),
        ("batch", "batch"),
        ("dense", "to_dense"),
    ],
)
def test_every_fault_of_an_operator_is_caught(fault, message, generator):
    check_linear_operator(Faulty(None), generator=generator)
    with pytest.raises(AssertionError, match=rf"{message}"):
        check_linear_operator(Faulty(fault), generator=generator)


class Altered(TorusGaussian):
    """A sound model but for one fault."""

    fault = ""

    def apply(self, eps):
        mean = super().apply(eps)
        return mean + 1e-3 * mean**2 if self.fault == "tangent" else mean

    def linearise(self, eps):
        tangent = super().linearise(eps)
        variance, operator = tangent.variance, tangent.operator
        if self.fault == "variance":
            variance = 2 * variance
        if self.fault == "negative":
            variance = variance - 2 * variance.max()
        if self.fault == "adjoint":
            operator = FunctionOperator(
                operator.shape,
                operator.matvec,
                lambda y: 1.0001 * tangent.operator.rmatvec(y),
                dtype=operator.dtype,
            )
        prediction = tangent.prediction + (1e-3 if self.fault == "prediction" else 0)
        return Linearisation(
            prediction=prediction, operator=operator, variance=variance
        )

    def residual_draws(self, eps, generator):
        draws = super().residual_draws(eps, generator)
        return draws + 0.5 * self.variance.sqrt() if self.fault == "mean" else draws

    def at(self, functionals):
        other = super().at(functionals)
        if self.fault == "at":
            other.offset = other.offset + 0.1
        return other


@pytest.fixture(scope="module")
def sound():
    """A model that the checker lets through."""
    generator = torch.Generator().manual_seed(20210413)
    grid = Grid(shape=(6, 5), spacing=(1.0, 1.0), origin=(0.0, 0.0))
    whitening = TorusWhitening(
        Matern32(lengthscale=1.2), Torus(grid=grid, shape=(8, 8)), refinement=2
    )
    points = torch.rand(9, 2, generator=generator, dtype=torch.float64) * 4
    model = Altered(
        whitening, PointValues(points), residual_count=1000, generator=generator
    )
    check_forward_model(model, generator, variance_draws=1000)
    return model


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("tangent", "Φ δ against apply"),
        ("prediction", "linearise"),
        ("adjoint", "adjoint is wrong"),
        ("variance", "variance of the residual"),
        ("negative", "negative"),
        ("mean", "mean of the residual"),
        ("at", "selected functionals"),
    ],
)
def test_every_fault_of_a_forward_model_is_caught(fault, message, sound, generator):
    model = copy.copy(sound)
    model.fault = fault
    with pytest.raises(AssertionError, match=message):
        check_forward_model(model, generator, variance_draws=1000)
