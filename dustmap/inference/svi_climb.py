"""Steps of stochastic variational inference, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from dustmap.checkpoint import (
    State,
    check_state,
    flatten,
    part_of,
    rebuild,
    require_finite,
    schema_of,
    scoped,
)
from dustmap.inference.elbo import GaussianData, expected_log_likelihood
from dustmap.inference.kernel_learning import Hyperparameters, learning_terms
from dustmap.inference.low_rank import LowRankGaussian, NaturalGaussian
from dustmap.inference.svi_settings import SviSettings
from dustmap.inference.variational import divergence_from_prior
from dustmap.models.rowwise import Rows, RowwiseGaussian


class Climb:
    """The state of a run: model, data and q as they stand, and what has been seen."""

    def __init__(
        self,
        model: RowwiseGaussian,
        data: GaussianData,
        q: NaturalGaussian,
        settings: SviSettings,
        generator: torch.Generator,
        *,
        hyperparameters: Hyperparameters | None,
    ) -> None:
        self.model = model
        self.data = data
        self.q = q
        self.hyperparameters = hyperparameters
        self.bounds: list[float] = []
        self.limited = 0
        self._settings = settings
        self._generator = generator
        self._seen = 0
        # What was learnt, before every step. Grown by copies: a state may hold them.
        self.trace: dict[str, Tensor] = {}
        if hyperparameters is not None:
            values = hyperparameters.values()
            self.trace = {name: value[None][:0] for name, value in values.items()}
        # Before the order of the epoch at hand was drawn.
        self._before = generator.get_state()
        # Of rows; those that are kept are solved, and counted, again after restoring.
        self._report = model.report

    @property
    def count(self) -> int:
        """The number of steps, of all epochs."""
        return self._settings.epochs * self._batches

    @property
    def _batches(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.data) // self._settings.batch_size)

    def steps(self) -> Iterator[float]:
        """The bound's estimates, step after step from where the run stands."""
        while len(self.bounds) < self.count:
            order = torch.randperm(len(self.data), generator=self._generator)
            done = len(self.bounds) % self._batches
            for index in order.split(self._settings.batch_size)[done:]:
                self.step(index)
                if len(self.bounds) % self._batches == 0:
                    self._before = self._generator.get_state()
                yield self.bounds[-1]

    def step(self, index: Int[Tensor, " b"]) -> None:
        """One minibatch: estimate the bound, move q, then θ by the q before."""
        learning = self.hyperparameters is not None and self._seen >= len(self.data)
        rows, expected = self._terms(index, learning=learning)
        scale = len(self.data) / len(index)
        bound = float(scale * expected.sum() - float(divergence_from_prior(self.q)))
        self._require_finite(rows=rows.features, row_variances=rows.variance)
        self._require_finite(bound=bound)
        self.bounds.append(bound)
        batch = self.data.batch(index, rows)
        rate = self._settings.rate(len(index), self._seen, len(self.data))
        self._seen += len(index)
        self.q = self.q.covariance_step(batch, rate)
        curvature = self.q.curvature(batch)
        # Rounding alone must not count as a cut in full rank, where l λ_max ≤ 1 holds.
        if rate * curvature > 1 + 1e-9:
            self.limited += 1
            rate = 1 / curvature
        self.q = self.q.mean_step(batch, rate)
        self._require_finite(curvature=curvature, mean=self.q.mean)
        if learning:
            self._move_hyperparameters()
        if self.model.kept is None:
            self._report = self.model.report

    def _require_finite(self, **values: Tensor | float) -> None:
        require_finite(f"svi, step {len(self.bounds)}", **values)

    def _terms(
        self, index: Int[Tensor, " b"], *, learning: bool
    ) -> tuple[Rows, Tensor]:
        if self.hyperparameters is not None:
            for name, value in self.hyperparameters.values().items():
                self.trace[name] = torch.cat([self.trace[name], value[None]])
        if self.hyperparameters is None or not learning:
            rows = self.model.rows(index)
            return rows, expected_log_likelihood(self.data, index, rows, self.q)
        terms = learning_terms(
            self.model, self.data, self.q, index, self.hyperparameters
        )
        return terms.rows, terms.expected

    def _move_hyperparameters(self) -> None:
        assert self.hyperparameters is not None
        self.hyperparameters.step()
        self._require_finite(**self.hyperparameters.values())
        self._use_hyperparameters()

    def _use_hyperparameters(self) -> None:
        assert self.hyperparameters is not None
        self.model = self.model.with_kernel(self.hyperparameters.fixed_kernel())
        common = float(self.hyperparameters.common_noise().detach())
        self.data = replace(self.data, common_noise=common)

    def state(self) -> State:
        """All of it, between two steps."""
        state: State = {
            "generator": self._before,
            "seen": self._seen,
            "limited": self.limited,
            "bounds": torch.tensor(self.bounds, dtype=torch.float64),
            **flatten("rows", self._report),
            **_moments(self.q),
            **scoped("trace", self.trace),
        }
        if self.hyperparameters is not None:
            state |= self.hyperparameters.state()
        return state

    def restore(self, state: State) -> None:
        """Go on from a state.

        Raises
        ------
        ValueError
            If it is not one of this run.
        """
        learnt, moments = self.hyperparameters, _moments(self.q)
        traces = [f"trace.{name}" for name in self.trace]
        schema = schema_of(self.state(), any_length=["bounds", *traces])
        if "columns" in moments:
            schema["columns"] = moments["columns"].dtype, (len(self.q.mean), None)
        optional = {} if learnt is None else {"adam": learnt.moments_schema()}
        check_state(state, schema, optional)
        self._before = state["generator"]
        self._generator.set_state(self._before)
        self._seen, self.limited = state["seen"], state["limited"]
        self.bounds = state["bounds"].tolist()
        self.q = replace(self.q, **{name: state[name] for name in moments})
        self.trace = part_of(state, "trace")
        if learnt is not None:
            learnt.restore(state)
            if learnt.moved:
                self._use_hyperparameters()
        self._report = self.model.report = rebuild("rows", self._report, state)


def _moments(q: NaturalGaussian) -> dict[str, Tensor]:
    """What of q changes."""
    if isinstance(q, LowRankGaussian):
        return {"mean": q.mean, "diagonal": q.diagonal, "columns": q.columns}
    return {"mean": q.mean, "precision": q.precision}
