"""The training loop: minibatches move q and the hyperparameters up the bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.checkpoint import misfit, require_finite, restored
from dustmap.inference.svi.bound import Observations, Svgp, Terms
from dustmap.inference.svi.gaussian import StepReport, initial_family
from dustmap.inference.svi.hyperparameters import Hyperparameters
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.memory import rows_within
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import FeatureRows, RowReport, RowwiseGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The progress of a run, as checkpoints hold it; q consists of blocks.

    ``generator`` is the state before the order of the current epoch was drawn,
    ``vector`` holds the hyperparameters, and ``adam_step``, ``exp_avg`` and
    ``exp_avg_sq`` are the moments of their optimiser.
    """

    generator: Tensor
    step: int
    bounds: Float[Tensor, " t"]
    bounded_steps: int
    rows: RowReport
    steps: StepReport
    mean: Float[Tensor, " p"]
    precision: Float[Tensor, "k b b"]
    vector: Float[Tensor, " h"]
    adam_step: Float[Tensor, ""]
    exp_avg: Float[Tensor, " h"]
    exp_avg_sq: Float[Tensor, " h"]


class Trainer:
    """Data, the current q and hyperparameters, and the record of the steps.

    ``forward`` is the prior where learning starts, with the functionals of ``data``;
    ``generator`` draws the minibatches; ``count`` is the number of steps in all epochs.
    """

    def __init__(
        self,
        forward: RowwiseGaussian,
        data: Observations,
        settings: SvgpSettings,
        generator: torch.Generator,
    ) -> None:
        self.forward, self.data, self.settings = forward, data, settings
        self.count = settings.total_steps(len(data))
        self.q = initial_family(forward, settings)
        mean = forward.mean.value if isinstance(forward.mean, ConstantMean) else None
        own = forward.whitening, data.likelihood, settings, mean
        self.hyperparameters = Hyperparameters(*own)
        self.steps = 0
        self.bounds: list[float] = []
        self.report = StepReport()
        self._generator = generator
        # State of the generator before it drew the order of the current epoch.
        self._before = generator.get_state()
        # Report on rows; kept rows are solved and counted again on restoring.
        self._rows = forward.report
        ones = ConstantMean(value=1.0).observed(forward.functionals)
        self._ones = ones.to(forward.device)
        self._vector = self.hyperparameters.vector
        self._optimiser = torch.optim.Adam([self._vector])
        # Adam's moments exist from the start, so that every state holds them.
        self._moments = {
            "step": torch.tensor(0.0, dtype=torch.float32),
            "exp_avg": torch.zeros_like(self._vector, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(self._vector, requires_grad=False),
        }
        self._optimiser.state[self._vector] = self._moments

    def run(self) -> Iterator[int]:
        """Make the remaining steps, and yield the number done after each."""
        batches = self.settings.batches(len(self.data))
        while self.steps < self.count:
            order = torch.randperm(len(self.data), generator=self._generator)
            done = self.steps % batches
            for index in order.tensor_split(batches)[done:]:
                self.step(index)
                if self.steps % batches == 0:
                    self._before = self._generator.get_state()
                yield self.steps
                if self.steps == self.count:
                    return

    def step(self, index: Int[Tensor, " b"]) -> None:
        """Estimate a minibatch's bound; move q, and hyperparameters by the old q."""
        settings, count = self.settings, len(self.data)
        where = f"svi, step {self.steps}"
        rest = settings.batches(count)
        if settings.rest is not None:
            rest = settings.rest * self.count
        learning = len(self._vector) > 0 and self.steps >= rest
        terms = self.terms(index, learning=learning)
        require_finite(where, rows=terms.features, row_variances=terms.conditional)
        require_finite(where, bound=terms.expected)
        if self._recording:
            bound = count * float(terms.expected.mean()) - self.q.divergence()
            require_finite(where, bound=bound)
            self.bounds.append(bound)
        seen = self.observations().select(index)
        rows = FeatureRows(terms.features, terms.conditional)
        moments, scale = (terms.mean, terms.variance), count / len(index)
        length = settings.length(len(index), self.steps, count)
        self.q, done = self.q.safe_step(seen.batch(rows, moments, scale=scale), length)
        require_finite(where, mean=self.q.mean)
        self.report = self.report + done
        if learning:
            # One step of Adam up the bound per observation.
            (group,) = self._optimiser.param_groups
            group["lr"] = settings.rate * settings.decayed(self.steps / self.count)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
            self.hyperparameters.restrict()
            require_finite(where, **self.hyperparameters.values())
        self.steps += 1
        if self.forward.kept is None:
            self._rows = self.forward.report

    def observations(self, *, learning: bool = False) -> Observations:
        """Return the data under the current likelihood and mean, with gradients."""
        with torch.set_grad_enabled(learning):
            data = replace(self.data, likelihood=self.hyperparameters.likelihood())
            mean = self.hyperparameters.mean()
            return data if mean is None else replace(data, offset=mean * self._ones)

    def terms(self, index: Int[Tensor, " b"], *, learning: bool) -> Terms:
        """Return the bound's terms of a minibatch, and accumulate its gradient.

        Rows that move with the hyperparameters are shared out among the ranks.
        """
        if not (learning and self.hyperparameters.moves_features):
            rows = self.forward.rows(index)
            return self._terms(index, rows, len(index), learning=learning)

        # Autograd holds four values for every pair of nodes and inducing points.
        pairs = self.forward.nodes_per_row * self.forward.inducing_size
        few = min(self.forward.chunk, rows_within(32 * pairs))

        def solved(own: Int[Tensor, " b"]) -> Terms:
            none = self._ones.new_zeros(0)
            empty = none.new_zeros(0, self.forward.latent_size)
            parts = [Terms(empty, none, none, none, none)]
            for rows_at_once in own.split(few) if len(own) else ():
                whitening = self.hyperparameters.whitening()
                rows = self.forward.rows_under(whitening, rows_at_once)
                parts.append(self._terms(rows_at_once, rows, len(index), learning=True))
            return Terms(*(torch.cat(column) for column in zip(*parts, strict=True)))

        found = Terms(*self.forward.shared_out(solved, index))
        group, own = self.forward.group, self._vector.grad
        if group.size > 1:
            own = torch.zeros_like(self._vector) if own is None else own
            self._vector.grad = group.sum(own.detach())
        return found

    def _terms(
        self, index: Int[Tensor, " b"], rows: FeatureRows, count: int, *, learning: bool
    ) -> Terms:
        """Return the terms of some rows of a minibatch of ``count``."""
        with torch.set_grad_enabled(learning):
            data = self.observations(learning=learning).select(index)
            found = data.terms(rows, self.q, spread=learning or self._recording)
            if learning:
                (-found.expected.sum() / count).backward()
        return Terms(*(part.detach() for part in found))

    @property
    def _recording(self) -> bool:
        return self.steps % self.settings.record_every == 0

    def model(self) -> Svgp:
        """Return the current model."""
        forward = self.forward
        with torch.no_grad():
            mean = self.hyperparameters.mean()
            if self.hyperparameters.moves_features:
                forward = forward.on(self.hyperparameters.whitening())
        if mean is not None:
            forward = forward.about(ConstantMean(value=float(mean)))
        likelihood = self.observations().likelihood
        # The model predicts by a factor, whichever solver made the steps.
        q = replace(self.q, solver=None) if self.q.solver else self.q
        return Svgp(forward=forward, q=q, likelihood=likelihood)

    @property
    def progress(self) -> Training:
        """Progress of the run, to be saved."""
        moments = self._moments
        return Training(
            generator=self._before,
            step=self.steps,
            bounds=torch.tensor(self.bounds, dtype=torch.float64),
            bounded_steps=self.hyperparameters.bounded_steps,
            rows=self._rows,
            steps=self.report,
            mean=self.q.mean,
            precision=self.q.precision,
            # The optimiser changes these tensors in place.
            vector=self._vector.detach().clone(),
            adam_step=moments["step"].clone(),
            exp_avg=moments["exp_avg"].clone(),
            exp_avg_sq=moments["exp_avg_sq"].clone(),
        )

    def restore(self, saved: Training) -> None:
        """Go on from saved progress.

        Raises `ValueError` if it belongs to another run.
        """
        if not isinstance(saved, Training):
            raise misfit("it", "of this engine", "that of another")
        moments = self._moments
        own = {"mean": self.q.mean, "precision": self.q.precision}
        own |= dict.fromkeys(("vector", "exp_avg", "exp_avg_sq"), self._vector)
        saved = restored(saved, own)
        self._before = saved.generator
        self._generator.set_state(self._before)
        self.steps, self.bounds = saved.step, saved.bounds.tolist()
        self.hyperparameters.bounded_steps = saved.bounded_steps
        self.report = saved.steps
        self.q = replace(self.q, mean=saved.mean, precision=saved.precision)
        with torch.no_grad():
            self._vector.copy_(saved.vector)
        moments["step"].copy_(saved.adam_step)
        moments["exp_avg"].copy_(saved.exp_avg)
        moments["exp_avg_sq"].copy_(saved.exp_avg_sq)
        self._rows = self.forward.report = saved.rows
