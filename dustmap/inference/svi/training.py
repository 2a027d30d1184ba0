"""The training loop: minibatches move q and the hyperparameters up the bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
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
from dustmap.inference.svi.blocks import BlockGaussian
from dustmap.inference.svi.bound import (
    Observed,
    divergence_of,
    noise_and_spread,
)
from dustmap.inference.svi.gaussian import (
    Batch,
    StepReport,
)
from dustmap.inference.svi.hyperparameters import GenerativeModel, Hyperparameters
from dustmap.inference.svi.low_rank import LowRankGaussian
from dustmap.inference.svi.model import NaturalFamily, Svgp, ones
from dustmap.inference.svi.precision import PrecisionGaussian
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.likelihoods import Likelihood
from dustmap.models.row_gradient import differentiable_rows
from dustmap.models.rowwise import FeatureRows, RowwiseGaussian

# Pairs of nodes and inducing points whose kernel values autograd may hold at once.
_PAIRS = 2**22


class Terms(NamedTuple):
    """``k_n`` and ``v_n`` of a minibatch, moments of ``q(f_n)`` and ``E_n``."""

    features: Float[Tensor, "b p"]
    conditional: Float[Tensor, " b"]
    mean: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    expected: Float[Tensor, " b"]


class Trainer:
    """Data, q and hyperparameters as they stand, and the record of the steps.

    Parameters
    ----------
    forward
        The prior where learning starts, and the functionals.
    data
        Their observations.
    q
        Where q starts.
    hyperparameters
        What is learnt beside q.
    settings
        How.
    generator
        Draws the minibatches.
    estimates
        Draws what estimates of the KL term need: how often they are made changes no
        fit.
    """

    def __init__(
        self,
        forward: RowwiseGaussian,
        data: Observed,
        q: NaturalFamily,
        hyperparameters: Hyperparameters,
        settings: SvgpSettings,
        generator: torch.Generator,
        *,
        estimates: torch.Generator | None = None,
    ) -> None:
        self.forward = forward
        self.data = data
        self.q = q
        self.hyperparameters = hyperparameters
        self.settings = settings
        self.estimates = estimates
        self.steps = 0
        self.bounds: list[float] = []
        self.report = StepReport()
        self._generator = generator
        self._traces: list[dict[str, Tensor]] = []
        self._start = hyperparameters.fixed()
        # Before the order of the epoch at hand was drawn.
        self._before = generator.get_state()
        # Of rows; those that are kept are solved, and counted, on restoring.
        self._rows = forward.report
        self.ones = ones(forward)
        self._leaves = hyperparameters.leaves
        moving = list(self._leaves.values())
        self._optimiser = torch.optim.Adam(moving) if moving else None

    def __len__(self) -> int:
        return len(self.data.values)

    @property
    def count(self) -> int:
        """The number of steps, of all epochs."""
        return self.settings.total_steps(len(self))

    def run(self) -> Iterator[int]:
        """The number of steps done, step after step from where the run stands."""
        batches = self.settings.batches(len(self))
        while self.steps < self.count:
            order = torch.randperm(len(self), generator=self._generator)
            done = self.steps % batches
            for index in order.tensor_split(batches)[done:]:
                self.step(index)
                if self.steps % batches == 0:
                    self._before = self._generator.get_state()
                yield self.steps
                if self.steps == self.count:
                    return

    def step(self, index: Int[Tensor, " b"]) -> None:
        """One minibatch: estimate the bound, move q, then the rest by the q before."""
        settings, count = self.settings, len(self)
        learning = bool(self.hyperparameters.leaves) and (
            self.steps >= settings.learning_begins(count)
        )
        terms = self.terms(index, learning=learning)
        self._require_finite(rows=terms.features, row_variances=terms.conditional)
        self._require_finite(bound=terms.expected)
        self._record(count * float(terms.expected.mean()))
        batch = self._batch(index, terms)
        length = settings.length(len(index), self.steps, count)
        self.q, done = self.q.safe_step(batch, length)
        self._require_finite(mean=self.q.mean)
        self.report = self.report + done
        if learning:
            self._adam()
        self.steps += 1
        if self.forward.kept is None:
            self._rows = self.forward.report

    def terms(self, index: Int[Tensor, " b"], *, learning: bool) -> Terms:
        """What the bound says of a minibatch; its gradient is accumulated.

        Rows that move with the hyperparameters are shared out among the ranks.
        """
        if not (learning and self.hyperparameters.moves_features):
            rows = self.forward.rows(index)
            model = self.hyperparameters.model() if learning else self._start
            return self._terms_of(model, index, rows, len(index), learning=learning)

        def solved(own: Int[Tensor, " b"]) -> Terms:
            none = self.ones.new_zeros(0)
            empty = none.new_zeros(0, self.forward.latent_size)
            parts = [Terms(empty, none, none, none, none)]
            for few in own.split(self._at_once) if len(own) else ():
                model = self.hyperparameters.model()
                rows = differentiable_rows(
                    self.forward, model.kernel, few, whitening=model.whitening
                )
                found = self._terms_of(model, few, rows, len(index), learning=True)
                parts.append(found)
            return Terms(*(torch.cat(column) for column in zip(*parts, strict=True)))

        found = Terms(*self.forward.shared_out(solved, index))
        group = self.forward.group
        for leaf in self._leaves.values() if group.size > 1 else ():
            own = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            leaf.grad = group.sum(own)
        return found

    def _terms_of(
        self,
        model: GenerativeModel,
        index: Int[Tensor, " b"],
        rows: FeatureRows,
        count: int,
        *,
        learning: bool,
    ) -> Terms:
        """Those of some rows of a minibatch of ``count``."""
        quadratic: Tensor | float = 0.0
        if self._needs_variance(model.likelihood, learning=learning):
            quadratic = self.q.quadratic(rows.features)
        likelihood, variance = noise_and_spread(
            model.likelihood.select(index),
            rows.variance,
            quadratic,
            subgrid_noise=self.data.subgrid_noise,
        )
        mean = model.mean * self.ones[index] + rows.features @ self.q.mean
        expected = likelihood.expected(self.data.values[index], mean, variance)
        if expected.requires_grad:
            (-expected.sum() / count).backward()
        found = Terms(rows.features, rows.variance, mean, variance, expected)
        return Terms(*(part.detach() for part in found))

    @property
    def _at_once(self) -> int:
        """Rows of which autograd holds what it needs at once."""
        nodes = self.forward.nodes_per_row * self.forward.inducing_size
        return max(1, min(self.forward.chunk, int(_PAIRS / nodes)))

    def _needs_variance(self, likelihood: Likelihood, *, learning: bool) -> bool:
        """Whether this step needs ``k_nᵀ S k_n``, its dear part."""
        return learning or self._recording or not likelihood.conjugate

    @torch.no_grad()
    def _batch(self, index: Int[Tensor, " b"], terms: Terms) -> Batch:
        likelihood, _ = noise_and_spread(
            self.hyperparameters.likelihood().select(index),
            terms.conditional,
            0.0,
            subgrid_noise=self.data.subgrid_noise,
        )
        return minibatch(
            likelihood,
            self.data.values[index],
            terms.features,
            self.hyperparameters.mean() * self.ones[index],
            (terms.mean, terms.variance),
            scale=len(self) / len(index),
        )

    @property
    def _recording(self) -> bool:
        return self.steps % self.settings.record_every == 0

    def _record(self, expected: float) -> None:
        """The minibatch estimate of the bound, now and then."""
        if not self._recording:
            return
        bound = expected - divergence_of(self.q, self.estimates).value
        self._require_finite(bound=bound)
        self.bounds.append(bound)
        self._traces.append(self.hyperparameters.values())

    def _adam(self) -> None:
        """One step of Adam up the bound per observation."""
        assert self._optimiser is not None
        decay = self.settings.decayed(self.steps / self.count)
        for group in self._optimiser.param_groups:
            group["lr"] = self.settings.rate * decay
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.hyperparameters.restrict()
        self._require_finite(**self.hyperparameters.values())

    def _require_finite(self, **values: Tensor | float) -> None:
        require_finite(f"svi, step {self.steps}", **values)

    @property
    def recorded(self) -> list[int]:
        """The steps that were recorded."""
        return list(range(0, self.steps, self.settings.record_every))

    def trace(self) -> dict[str, Tensor]:
        """What was learnt, before every recorded step, by name."""
        names = self._traces[0] if self._traces else {}
        return {name: torch.stack([v[name] for v in self._traces]) for name in names}

    def model(self) -> Svgp:
        """The model as it stands."""
        found, q = self.hyperparameters.fixed(), self.q
        forward = self.forward
        if self.hyperparameters.moves_features:
            forward = forward.on(found.whitening)
        return Svgp(
            forward=forward,
            q=q.frozen() if isinstance(q, PrecisionGaussian) else q,
            likelihood=found.likelihood,
            mean=float(found.mean),
        )

    def state(self) -> State:
        """All that a restored run needs, of a q by blocks or of low rank."""
        state: State = {
            "generator": self._before,
            "step": self.steps,
            "bounds": torch.tensor(self.bounds, dtype=torch.float64),
            "bounded_steps": self.hyperparameters.bounded_steps,
            **flatten("rows", self._rows),
            **flatten("steps", self.report),
            **scoped("q", _tensors(self.q)),
            **scoped("trace", self.trace()),
        }
        for name, leaf in self._leaves.items():
            # The optimiser changes all of these in place.
            state[f"leaf.{name}"] = leaf.detach().clone()
            moments = self._optimiser.state.get(leaf, {}) if self._optimiser else {}
            own = {key: value.clone() for key, value in moments.items()}
            state |= scoped(f"adam.{name}", own)
        return state

    def restore(self, state: State) -> None:
        """Go on from a state.

        Raises
        ------
        ValueError
            If it is not one of this run.
        """
        schema = schema_of(self.state(), any_length=["bounds"])
        if isinstance(self.q, LowRankGaussian):
            schema["q.columns"] = torch.float64, (len(self.q.mean), None)
        values = self.hyperparameters.values() if self._leaves else {}
        traces = {name: value[None] for name, value in values.items()}
        moments: State = {}
        for name, leaf in self._leaves.items():
            moments[f"{name}.step"] = torch.tensor(0.0, dtype=torch.float32)
            moments[f"{name}.exp_avg"] = moments[f"{name}.exp_avg_sq"] = leaf
        optional = {
            "trace": schema_of(traces, any_length=traces),
            "adam": schema_of(moments),
        }
        check_state(state, schema, optional)
        self._before = state["generator"]
        self._generator.set_state(self._before)
        self.steps, self.bounds = state["step"], state["bounds"].tolist()
        self.hyperparameters.bounded_steps = state["bounded_steps"]
        self.report = rebuild("steps", self.report, state)
        assert isinstance(self.q, BlockGaussian | LowRankGaussian)
        q, trace = (
            {name: value.to(self.ones) for name, value in part_of(state, part).items()}
            for part in ("q", "trace")
        )
        self.q = replace(self.q, **q)
        self._traces = [
            {name: values[number] for name, values in trace.items()}
            for number in range(len(self.bounds))
        ]
        for name, leaf in self._leaves.items():
            with torch.no_grad():
                leaf.copy_(state[f"leaf.{name}"])
            assert self._optimiser is not None
            if found := part_of(state, f"adam.{name}"):
                # Adam counts its steps on the CPU.
                self._optimiser.state[leaf] = {
                    key: value.clone() if key == "step" else value.to(leaf, copy=True)
                    for key, value in found.items()
                }
        self._rows = self.forward.report = rebuild("rows", self._rows, state)


def _tensors(q: NaturalFamily) -> State:
    """What of q changes."""
    assert isinstance(q, BlockGaussian | LowRankGaussian)
    names = ("mean", "precision", "diagonal", "columns")
    own = [f.name for f in fields(q) if f.name in names]
    return {name: getattr(q, name) for name in own}


def minibatch(
    likelihood: Likelihood,
    values: Float[Tensor, " b"],
    features: Float[Tensor, "b p"],
    offset: Float[Tensor, " b"],
    moments: tuple[Float[Tensor, " b"], Float[Tensor, " b"]],
    *,
    scale: float,
) -> Batch:
    """What a natural step needs of a minibatch.

    Parameters
    ----------
    likelihood, values
        Of the minibatch.
    features, offset
        ``k_n`` and ``L_n μ``.
    moments
        Mean and variance of ``q(f_n)``.
    scale
        ``N/|B|``.
    """
    mean, variance = (m.detach().requires_grad_(True) for m in moments)
    with torch.enable_grad():
        expected = likelihood.expected(values, mean, variance).sum()
        by_mean, by_variance = torch.autograd.grad(expected, (mean, variance))
    weight = -2 * scale * by_variance

    @torch.no_grad()
    def objective(m: Tensor) -> float:
        moved = offset + features @ m
        return scale * float(likelihood.expected(values, moved, variance).sum())

    kept = weight.clamp(min=0)
    return Batch(
        features=features,
        weight=kept,
        target=scale * by_mean + kept * (mean.detach() - offset),
        clipped=int((weight < 0).sum()),
        objective=None if likelihood.conjugate else objective,
    )
