"""Steps of stochastic variational inference, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dustmap.inference.elbo import GaussianData, expected_log_likelihood
from dustmap.inference.journal import as_part, generator_kind, part
from dustmap.inference.kernel_learning import Hyperparameters, learning_terms
from dustmap.inference.low_rank import LowRankGaussian, NaturalGaussian
from dustmap.inference.svi_settings import SviSettings
from dustmap.inference.variational import divergence_from_prior
from dustmap.journal import Frame, Journal, Pattern, State, like
from dustmap.models.row_report import RowReport
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
        journal: Journal,
    ) -> None:
        self.model = model
        self.data = data
        self.q = q
        self.hyperparameters = hyperparameters
        self.bounds: list[float] = []
        self.limited = 0
        self._settings = settings
        self._generator = generator
        self._journal = journal
        self._seen = 0
        self._values: list[dict[str, Tensor]] = []
        # Before the order of the epoch at hand was drawn.
        self._before = generator.get_state()
        # Of rows; those that are kept are solved, and counted, when it is taken up.
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
        self._journal.require_finite(f"step {len(self.bounds)}", **values)

    def _terms(
        self, index: Int[Tensor, " b"], *, learning: bool
    ) -> tuple[Rows, Tensor]:
        if self.hyperparameters is not None:
            self._values.append(self.hyperparameters.values())
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

    def trace(self) -> dict[str, Tensor]:
        """What was learnt, before every step, by name."""
        names = self._values[0] if self._values else {}
        return {name: torch.stack([v[name] for v in self._values]) for name in names}

    def saved(self) -> State:
        """All of it."""
        report = {f.name: getattr(self._report, f.name) for f in fields(RowReport)}
        state: State = {
            "generator": self._before,
            "seen": self._seen,
            "limited": self.limited,
            "bounds": torch.tensor(self.bounds, dtype=torch.float64),
            **as_part("rows", report),
            **{name: getattr(self.q, name) for name in _moments(self.q)},
            **as_part("trace", dict(self.trace())),
        }
        if self.hyperparameters is not None:
            state |= self.hyperparameters.saved()
        return state

    def take_up(self, frame: Frame) -> None:
        """Go on from where the frame was saved, if it was.

        Raises
        ------
        ValueError
            If what was saved does not fit.
        """
        report = {f"rows.{f.name}": type(f.default) for f in fields(RowReport)}
        pattern: Pattern = {
            "generator": generator_kind(self._generator),
            "seen": int,
            "limited": int,
            "bounds": (torch.float64, (None,)),
            **report,
            **_moments(self.q),
        }
        learnt = self.hyperparameters
        if learnt is None:
            known = frame.take(pattern)
        else:
            trace = {
                name: (value.dtype, (None, *value.shape))
                for name, value in learnt.logarithms.items()
            }
            known = frame.take(
                {**pattern, **learnt.pattern()},
                trace=trace,
                adam=learnt.moments_pattern(),
            )
        if known is not None:
            self._restore(known)

    def _restore(self, known: dict[str, Any]) -> None:
        self._before = known["generator"]
        self._generator.set_state(self._before)
        self._seen, self.limited = known["seen"], known["limited"]
        self.bounds = known["bounds"].tolist()
        self.q = replace(self.q, **{name: known[name] for name in _moments(self.q)})
        trace = part("trace", known)
        self._values = [
            {name: values[step] for name, values in trace.items()}
            for step in range(len(self.bounds) if trace else 0)
        ]
        if self.hyperparameters is not None:
            self.hyperparameters.take_up(known)
            if self.hyperparameters.moved:
                self._use_hyperparameters()
        self._report = self.model.report = RowReport(**part("rows", known))


def _moments(q: NaturalGaussian) -> Pattern:
    """What of q changes."""
    if isinstance(q, LowRankGaussian):
        columns = (q.columns.dtype, (len(q.mean), None))
        return {"mean": like(q.mean), "diagonal": like(q.diagonal), "columns": columns}
    return {"mean": like(q.mean), "precision": like(q.precision)}
