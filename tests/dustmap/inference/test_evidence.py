"""The evidence against the dense one of the model's own features."""

from __future__ import annotations

import dense_torus
import numpy as np
import pytest
import torch
from reference import log_evidence, woodbury_posterior

from dustmap.inference.evidence import collapsed_evidence
from dustmap.inference.full_batch import Precision
from dustmap.linalg.lanczos import LanczosQuadrature
from dustmap.linalg.preconditioners import NystromPreconditioner


def problem():
    functionals = dense_torus.mixed("matern32", 2, 3, count=20)
    model = dense_torus.model("matern32", 2, functionals, residual_refinement=2)
    generator = torch.Generator().manual_seed(1)
    n = len(functionals)
    y = 1 + torch.randn(n, generator=generator, dtype=torch.float64)
    noise = 0.01 + 0.1 * torch.rand(n, generator=generator, dtype=torch.float64)
    return model, dense_torus.dense("matern32", 2, model), y, noise


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("rank", [0, 40])
def test_the_evidence_is_the_dense_one_to_its_error(subgrid, rank):
    model, oracle, y, noise = problem()
    v = model.variance.numpy()
    total = noise.numpy() + v * subgrid
    centred = y.numpy() - oracle.offset
    gram = oracle.features @ oracle.features.T
    exact = log_evidence(gram, centred, total)
    if not subgrid:
        exact -= 0.5 * float((v / noise.numpy()).sum())
    mean = torch.from_numpy(woodbury_posterior(oracle.features, centred, total)[0])
    tangent = model.linearise(mean)
    scores, errors = [], []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        preconditioner = None
        if rank:
            precision = Precision(tangent.operator, torch.from_numpy(total))
            preconditioner = NystromPreconditioner.build(
                precision.data_term, model.latent_size, rank, generator, dtype=y.dtype
            )
        found = collapsed_evidence(
            tangent,
            y,
            noise,
            mean,
            subgrid_noise=subgrid,
            quadrature=LanczosQuadrature(probes=16, steps=50),
            generator=generator,
            preconditioner=preconditioner,
        )
        scores.append((found.value - exact) / found.error)
        errors.append(found.error)
    assert np.abs(scores).max() < 4
    assert np.std(scores) > 0.3
    # 16 probes on 210 parameters: nats, not tens of them.
    assert max(errors) < (1.5 if rank else 5)


def test_an_error_of_the_mean_enters_squared():
    model, oracle, y, noise = problem()
    centred = y.numpy() - oracle.offset
    mean = torch.from_numpy(
        woodbury_posterior(oracle.features, centred, noise.numpy())[0]
    )

    def value(at):
        return collapsed_evidence(
            model.linearise(at),
            y,
            noise,
            at,
            subgrid_noise=False,
            quadrature=LanczosQuadrature(probes=2, steps=5),
            generator=torch.Generator().manual_seed(1),
        ).value

    generator = torch.Generator().manual_seed(2)
    aside = 1e-2 * torch.randn(len(mean), generator=generator, dtype=torch.float64)
    exact = value(mean)
    lost = [exact - value(mean + step * aside) for step in (1.0, -1.0, 0.5)]
    assert lost[0] == pytest.approx(lost[1], rel=1e-6)
    assert lost[0] == pytest.approx(4 * lost[2], rel=1e-6)
    assert lost[0] > 0
