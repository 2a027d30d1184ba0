"""Heavy tails against SciPy's distributions, and mixtures against plain sums."""

import numpy as np
import pytest
import scipy.stats
import torch

from dustmap.tails import log_mixture, log_student, outlier_probability

ERRORS = torch.linspace(-30, 30, 61, dtype=torch.float64)
VARIANCE = 0.3 + ERRORS.abs() / 20


def scale_of(variance, degrees, of):
    """The scale of SciPy's law."""
    root = np.sqrt(variance.numpy())
    if of == "std":
        return root / scipy.stats.t(degrees).std()
    if of == "central68":
        return root / scipy.stats.t(degrees).ppf(scipy.stats.norm.cdf(1.0))
    return root


@pytest.mark.parametrize(
    ("of", "degrees", "atol"),
    [
        *(("scale", nu, 1e-12) for nu in (0.5, 1.0, 4.0, 199.0, 201.0, 1e4)),
        *(("std", nu, 1e-12) for nu in (2.5, 5.0, 300.0)),
        # Cornish and Fisher's expansion has two terms.
        *(
            ("central68", nu, atol)
            for nu, atol in ((2.5, 0.03), (5.0, 5e-3), (50.0, 1e-4))
        ),
    ],
)
def test_densities_are_scipys(of, degrees, atol):
    found = log_student(ERRORS**2, VARIANCE, degrees, of=of)
    scale = scale_of(VARIANCE, degrees, of)
    expected = scipy.stats.t.logpdf(ERRORS.numpy(), degrees, scale=scale)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=atol)


@pytest.mark.parametrize("of", ["scale", "std", "central68"])
@pytest.mark.parametrize("degrees", [2.5, 150.0, 1e3])
def test_derivatives_are_those_of_differences(of, degrees):
    leaves = (ERRORS.clone(), VARIANCE.clone(), torch.tensor(degrees).double())
    for leaf in leaves:
        leaf.requires_grad_(True)
    torch.autograd.gradcheck(lambda e, v, nu: log_student(e**2, v, nu, of=of), leaves)


def test_the_series_for_many_degrees_continues_the_gamma_functions():
    few, many = (
        log_student(ERRORS**2, 1.0, 200.0 + step, of="scale") for step in (-1e-9, 1e-9)
    )
    np.testing.assert_allclose(few, many, rtol=1e-11)


@pytest.mark.parametrize("fraction", [0.0, 1e-300, 0.01, 0.7])
def test_mixtures_are_sums_of_densities(fraction):
    usual, wide = (scipy.stats.norm.pdf(ERRORS / 5, scale=width) for width in (1, 10))
    logarithms = (torch.from_numpy(np.log(each)) for each in (usual, wide))
    usual, wide = (1 - fraction) * usual, fraction * wide
    given = (*logarithms, fraction)
    np.testing.assert_allclose(log_mixture(*given), np.log(usual + wide), rtol=1e-12)
    found = outlier_probability(*given)
    np.testing.assert_allclose(found, wide / (usual + wide), rtol=1e-10, atol=1e-320)
