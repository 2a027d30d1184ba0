"""White noise of samples from a seed, and whole numbers for the rest."""

from __future__ import annotations

import dense_torus
import pytest
import torch

from dustmap.distributed.group import Group
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.posterior_coding import WORST, FieldCode
from dustmap.inference.sample_coding import SampleCode
from dustmap.inference.white_noise import White, WhiteNoise
from dustmap.kernels import KERNELS
from dustmap.linalg.cg import ConjugateGradients
from dustmap.whitening import TorusWhitening

SOLVER = ConjugateGradients(rtol=1e-10, max_steps=2000)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def fields(kernel="matern32", shape=(24, 15), scale=3.0):
    grid = Grid(
        shape=tuple(n - 4 for n in shape), spacing=(1.0,) * 2, origin=(0.0,) * 2
    )
    prior = KERNELS[kernel](lengthscale=[scale] * 2, variance=1.7)
    whitening = TorusWhitening(prior, Torus(grid=grid, shape=shape))
    return FieldCode(whitening.coarse.power(0.5))


def blind(model, settings):
    """Samples given data that say nothing, and what draws their white noise."""
    count = len(model.functionals)
    found = infer(
        model,
        model.apply(torch.zeros(model.latent_size, dtype=torch.float64)),
        torch.full((count,), 1e12, dtype=torch.float64),
        settings=settings,
        generator=rng(7),
    )
    assert found.white_seed is not None
    sampler = "independent" if model.linear else "pairs"
    noise = WhiteNoise(seed=found.white_seed, sampler=sampler, observations=count)
    return found.samples, noise


def linear_model():
    functionals = dense_torus.mixed("matern52", 1, 3, count=5)
    return dense_torus.model("matern52", 1, functionals)


@pytest.mark.parametrize("linear", [True, False])
def test_samples_without_data_are_the_white_noise_of_the_seed(linear):
    model = linear_model() if linear else dense_torus.log_normal(1.0, 12, 3)
    settings = FullBatch(solver=SOLVER, samples=4, subgrid_noise=False)
    samples, noise = blind(model, settings)
    shape = model.whitening.torus.shape
    for number, sample in enumerate(samples):
        torch.testing.assert_close(sample, noise.draw(number, shape), rtol=0, atol=1e-3)


def test_white_noise_does_not_depend_on_what_was_asked_before():
    white = White(seed=3)
    first = white.pair(2, 5, 7)
    white.pair(0, 5, 7)
    for found, exact in zip(white.pair(2, 5, 7), first, strict=True):
        assert torch.equal(found, exact)
    assert [len(part) for part in first] == [5, 7]
    assert not torch.equal(first[0], white.pair(1, 5, 7)[0])


def test_noise_of_slabs_is_drawn_again_in_one_process():
    shape = (6, 5, 4)
    noise = WhiteNoise(seed=5, sampler="pairs", observations=11, slabs=True)
    space = SlabSpace(Slabs(shape=shape, cuts=(0, 6), group=Group()))
    xi = White(seed=5).pair(1, 11, 120, space)[1]
    torch.testing.assert_close(noise.draw(3, shape), -xi, rtol=0, atol=0)
    whole = WhiteNoise(seed=5, sampler="pairs", observations=11).draw(3, shape)
    assert float((whole + xi).abs().max()) > 0.1


@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
@pytest.mark.parametrize("sampler", ["pairs", "independent", None])
def test_decoded_fields_are_as_near_as_they_say(sampler, tolerance):
    code = fields()
    noise = None
    if sampler is not None:
        noise = WhiteNoise(seed=3, sampler=sampler, observations=10)
    mean = 0.3 * torch.randn(code.size, generator=rng(), dtype=torch.float64)
    white = WhiteNoise(seed=3, sampler=sampler or "pairs", observations=10)
    # The more the data say somewhere, the less is left of the noise there.
    left = torch.linspace(0.2, 1.0, code.size, dtype=torch.float64)
    samples = torch.stack([left * white.draw(s, code.shape) + mean for s in range(4)])
    stored = SampleCode(code, noise, mean)
    for numbers in stored.groups(len(samples)):
        part = samples[numbers[0] : numbers[-1] + 1]
        coded = stored.encode(part, numbers, tolerance)
        found = stored.decode(coded, numbers)
        for one, sample, error in zip(found, part, coded.errors, strict=True):
            off = (code.field(one) - code.field(sample)) / 1.7**0.5
            rms, worst = float((off**2).mean().sqrt()), float(off.abs().max())
            assert error.rms == pytest.approx(rms, rel=0.05)
            assert error.worst == pytest.approx(worst, rel=0.05)
            assert rms <= 1.05 * tolerance and worst <= 1.05 * WORST * tolerance
            # Not much finer than it was asked for, either.
            assert rms > tolerance / 3


def test_what_the_seed_knows_takes_no_numbers():
    code = fields()
    noise = WhiteNoise(seed=3, sampler="pairs", observations=10)
    samples = torch.stack([noise.draw(s, code.shape) for s in range(2)])
    coded = SampleCode(code, noise, torch.zeros_like(samples[0])).encode(
        samples, range(2), 1e-3
    )
    assert int(coded.code.numbers.abs().max()) == 0
    assert max(error.rms for error in coded.errors) < 1e-12


def test_modes_that_a_smooth_prior_has_not_stay_those_of_the_noise():
    # Of a squared exponential nearly all modes are below what rounding leaves: back
    # from u by C^{-1/2} alone they would be of any size.
    code = fields("squared-exponential", scale=3.5)
    noise = WhiteNoise(seed=3, sampler="independent", observations=10)
    white = noise.draw(0, code.shape)
    sample = 0.7 * white
    stored = SampleCode(code, noise, torch.zeros_like(white))
    coded = stored.encode(sample[None], range(1), 1e-3)
    found = stored.decode(coded, range(1))[0]
    assert coded.errors[0].rms <= 1e-3
    assert float(found.std()) < 1.05


def test_a_tolerance_beyond_the_precision_is_refused():
    code = fields()
    single = FieldCode(code.root.to(torch.float32, "cpu"))
    eps = 100 * torch.randn(1, single.size, generator=rng())
    with pytest.raises(FloatingPointError, match="loosen"):
        single.encode(eps, 1e-9, eps, lambda found: found)


def test_noise_that_solves_left_early_still_takes_no_numbers():
    # A pair whose solves were stopped at other multiples of its noise, and a few points
    # that data have moved: these must not bend the multiples.
    code = fields(shape=(60, 48))
    noise = WhiteNoise(seed=3, sampler="pairs", observations=10)
    moved = torch.zeros(code.size, dtype=torch.float64)
    moved[700:800] = 3 - 1.9 * noise.draw(0, code.shape)[700:800]
    samples = torch.stack(
        [0.97 * noise.draw(0, code.shape) + moved, 0.95 * noise.draw(1, code.shape)]
    )
    stored = SampleCode(code, noise, torch.zeros_like(moved))
    found = stored.encode(samples, range(2), 1e-3)
    assert found.gains == pytest.approx((0.01, 0.96), abs=1e-4)
    least_squares = float(samples[0] @ noise.draw(0, code.shape)) / code.size
    assert abs(least_squares - 0.97) > 0.01
