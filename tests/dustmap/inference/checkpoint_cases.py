"""Small inferences that are interrupted, and what they leave behind."""

from __future__ import annotations

import functools
import pickle
from dataclasses import fields, is_dataclass

import dense_torus
import numpy as np
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.full_batch import FullBatch
from dustmap.linalg.cg import ConjugateGradients
from dustmap.noise import Normal, StudentT

RULE = GaussLegendre(count=6)


def rng(seed):
    return torch.Generator().manual_seed(seed)


@functools.cache
def log_normal(count):
    """A positive density, and outlying data along so many rays."""
    model = dense_torus.log_normal(0.8, count)
    truth = model.white_noise(np.random.default_rng(4))
    clean = model.apply(truth)
    white = torch.randn(count, generator=rng(5), dtype=torch.float64)
    y = clean + 0.3 * float(clean.mean()) * white
    y[::17] += 3 * float(clean.mean())
    return model, y, torch.full_like(y, (0.1 * float(clean.mean())) ** 2)


def with_everything(samples):
    """Blurred distances, Student-T, and noise and share learnt, preconditioned."""
    count = 300
    model, y, variance = log_normal(count)
    ends = dense_torus.inside(2, count, 3)
    noise = StudentT(
        stated=variance,
        blur=LineIntegrals(0.95 * ends, RULE),
        blur_scale=torch.full((count,), 0.05, dtype=torch.float64),
        degrees=4.0,
        learn_common=True,
        learn_share=True,
        neighbours=torch.stack(
            [(torch.arange(count) + k) % count for k in (1, 2, 3)]
        ).T,
    )
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-4, max_steps=300),
        samples=samples,
        preconditioner_rank=8,
        newton_tolerance=1e-2,
        newton_steps=8,
    )
    return model, y, noise, settings


def alone(samples):
    """The log-normal model, normal noise, tight enough for finer solves to follow."""
    model, y, variance = log_normal(40)
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-8, max_steps=300),
        samples=samples,
        newton_tolerance=1e-4,
        preconditioner_rank=12,
    )
    return model, y, Normal(stated=variance), settings


def linear(degrees):
    """A Gaussian field, its samples in blocks of columns."""
    model = dense_torus.model(
        "matern52", 2, LineIntegrals(dense_torus.inside(2, 40, 3), RULE)
    )
    y = torch.randn(40, generator=rng(6), dtype=torch.float64)
    stated = torch.full_like(y, 0.05)
    noise = StudentT(stated=stated, degrees=degrees) if degrees else stated
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-9, max_steps=300),
        samples=5,
        block=2,
        preconditioner_rank=6,
    )
    return model, y, noise, settings


CASES = {
    "everything": functools.partial(with_everything, 6),
    "mode": functools.partial(alone, 0),
    "samples": functools.partial(alone, 4),
    "linear": functools.partial(linear, None),
    "linear, outliers": functools.partial(linear, 4.0),
}


def flat(value, name="result"):
    """Every number of a result, by its place in it."""
    if is_dataclass(value):
        found = {}
        for field in fields(value):
            found |= flat(getattr(value, field.name), f"{name}.{field.name}")
        return found
    if isinstance(value, dict):
        return {f"{name}.{key}": entry for key, entry in value.items()}
    return {name: value}


def assert_same(one, other):
    """Bit by bit, in every place."""
    ours, theirs = flat(one), flat(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[name]), name
        else:
            assert value == theirs[name], name


class StoppedError(Exception):
    """A run was ended after a step."""


class Recorder:
    """A checkpointer, and what it saved, by the number of the step.

    Parameters
    ----------
    every
        Of the states, every so many are stored; none if ``None``.
    stop
        Number of the state to end the run at, after it has been stored.
    files
        What to go on from, pickled.
    """

    def __init__(self, *, every=None, stop=None, files=None):
        self.files = {}
        self.steps = 0
        self._every, self._stop = every, stop
        self._restored = None if files is None else pickle.loads(files)

    def save(self, progress):
        self.steps += 1
        often = self._every is not None and self.steps % self._every == 0
        if often or self.steps == self._stop:
            self.files[self.steps] = pickle.dumps(progress)
        if self.steps == self._stop:
            raise StoppedError

    def restore(self):
        progress, self._restored = self._restored, None
        return progress


def interrupted(run, interval):
    """What a run ends with that is stopped after every so many steps."""
    files, stops = None, 0
    while True:
        recorder = Recorder(stop=interval, files=files)
        try:
            return run(recorder), stops
        except StoppedError:
            files, stops = recorder.files[interval], stops + 1
