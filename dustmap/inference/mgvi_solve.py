"""The posterior of a model that is not linear at one θ, as learning needs it."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.gauss_newton import OnStep, Precision
from dustmap.inference.learning_solve import State
from dustmap.inference.mgvi import White, averages, both_signs, refine
from dustmap.inference.noise import Noise, Weighing
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation


class VariationalSolve:
    """:data:`~dustmap.inference.learning_solve.Solve` by MGVI, warm-started.

    Parameters
    ----------
    observations
        ``y_n``.
    settings
        Of the full-batch engine: solver, pairs, rounds and steps per θ.
    seed
        Of the white noise behind the samples, the same at every θ.
    start
        ε to start from at the first θ.
    on_step
        Called as by the engine.
    """

    def __init__(
        self,
        observations: Float[Tensor, " n"],
        *,
        settings: FullBatch,
        seed: int,
        start: Float[Tensor, " p"] | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        self.observations = observations
        self.settings = settings
        self.white = White(seed=seed)
        self.seed = seed
        self.start = start
        self.on_step = on_step

    def __call__(
        self, model: ForwardModel, noise: Float[Tensor, " n"], start: State | None
    ) -> State:
        settings = self.settings
        given = Noise(variance=noise)
        mean = self.start if start is None else start.mean
        if mean is None or start is None:
            found = infer(
                model,
                self.observations,
                given,
                settings=replace(settings, samples=0),
                generator=torch.Generator().manual_seed(self.seed),
                start=mean,
                on_step=self.on_step,
            )
            mean = found.mean
        weighing = Weighing(
            model, self.observations, given, subgrid_noise=settings.subgrid_noise
        )
        kept: list[NystromPreconditioner | None] = [None]

        def sketch(precision: Precision) -> NystromPreconditioner | None:
            kept[0] = self._sketch(precision)
            return kept[0]

        refined = refine(
            model,
            weighing,
            mean,
            self.white,
            pairs=settings.pairs,
            rounds=settings.rounds if start is None else 1,
            steps=settings.steps,
            tolerance=settings.newton_tolerance * len(self.observations),
            solver=settings.sample_solver,
            sketch=sketch,
            on_step=self.on_step,
        )
        eps = both_signs(refined.mean, refined.deltas)
        seen = averages(model, weighing.observations, eps)
        return State(
            mean=refined.mean,
            deltas=refined.deltas,
            total_variance=weighing.total(eps, seen.variance),
            tangent=Linearisation(
                prediction=seen.prediction,
                operator=model.mean_tangent(eps),
                variance=seen.variance,
            ),
            preconditioner=kept[0],
            products=refined.products,
        )

    def _sketch(self, precision: Precision) -> NystromPreconditioner | None:
        length = precision.domain.length(precision.shape[0])
        rank = min(self.settings.preconditioner_rank, length)
        if rank == 0:
            return None
        return NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            rank,
            torch.Generator().manual_seed(self.seed),
            dtype=precision.dtype,
            device=precision.device,
            space=precision.domain,
        )
