r"""Learning a kernel's hyperparameters and the common noise by Adam on the bound.

Parameters move in the logarithm. q(ε) is held fixed in whitened coordinates during a
step, and so is the embedding, chosen once for the longest lengthscale allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.checkpoint import State, StateSchema, part_of, schema_of
from dustmap.distributed.group import Group
from dustmap.inference.elbo import GaussianData, expected_log_likelihood
from dustmap.inference.variational import Gaussian
from dustmap.kernels import Kernel
from dustmap.models.row_gradient import differentiable_rows
from dustmap.models.rowwise import Rows, RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

COMMON_NOISE = "common_noise"

# Node and grid point pairs whose kernel values autograd may hold at once.
_PAIRS = 2**22


class Hyperparameters:
    """Logarithms of what is learnt, with their optimiser and bounds.

    Parameters
    ----------
    kernel
        Where learning starts.
    common_noise
        τ² where learning starts, positive if it is learnt.
    names
        What to learn, of the kernel's parameters and ``common_noise``.
    rate
        Adam's.
    lengthscale_range
        Lengthscales stay within this factor of where they started.
    """

    def __init__(
        self,
        kernel: Kernel,
        common_noise: float,
        *,
        names: Sequence[str],
        rate: float,
        lengthscale_range: float,
    ) -> None:
        noise = torch.tensor(common_noise, dtype=torch.float64)
        start = {**kernel.parameters(), COMMON_NOISE: noise}
        unknown = sorted(set(names) - set(start))
        if unknown:
            raise ValueError(
                f"cannot learn {', '.join(unknown)}: there are {', '.join(start)}"
            )
        self._kernel = kernel
        self._fixed_noise = common_noise
        self.logarithms = {
            name: start[name].detach().to(torch.float64).log().requires_grad_(True)
            for name in names
        }
        self._centre = {n: v.detach().clone() for n, v in self.logarithms.items()}
        self._reach = math.log(lengthscale_range)
        self._optimiser = torch.optim.Adam(list(self.logarithms.values()), lr=rate)
        self.bounded_steps = 0

    def values(self) -> dict[str, Tensor]:
        """The hyperparameters at hand (no gradients)."""
        return {n: v.detach().exp() for n, v in self.logarithms.items()}

    def kernel(self) -> Kernel:
        """The kernel at hand, carrying gradients."""
        return _with(self._kernel, {n: v.exp() for n, v in self.logarithms.items()})

    def fixed_kernel(self) -> Kernel:
        """The kernel at hand, without gradients."""
        return _with(self._kernel, self.values())

    def common_noise(self) -> Tensor:
        """τ² at hand, carrying gradients if it is learnt."""
        if COMMON_NOISE in self.logarithms:
            return self.logarithms[COMMON_NOISE].exp()
        return torch.tensor(self._fixed_noise, dtype=torch.float64)

    def accumulate(self, objective: Tensor) -> None:
        """Add the gradient of one part of an objective to be made large."""
        (-objective).backward()

    def add_up(self, group: Group) -> None:
        """Add up the gradients that all ranks of a group have accumulated."""
        for value in self.logarithms.values() if group.size > 1 else ():
            own = torch.zeros_like(value) if value.grad is None else value.grad
            value.grad = group.sum(own)

    def step(self) -> None:
        """One step of Adam; steps that a bound cut short are counted."""
        self._optimiser.step()
        self._optimiser.zero_grad()
        cut = False
        with torch.no_grad():
            for name, value in self.logarithms.items():
                if not name.endswith("lengthscale"):
                    continue
                moved = value - self._centre[name]
                bounded = self._centre[name] + moved.clamp(-self._reach, self._reach)
                cut = cut or bool((moved.abs() > self._reach).any())
                value.copy_(bounded)
        self.bounded_steps += cut

    @property
    def moved(self) -> bool:
        """Whether a step has been made."""
        return bool(self._optimiser.state)

    def state(self) -> State:
        """Where learning stands, the optimiser's moments included."""
        state: State = {"bounded_steps": self.bounded_steps}
        for name, value in self.logarithms.items():
            # The optimiser changes all of these in place.
            state[f"log.{name}"] = value.detach().clone()
            for moment, entry in self._optimiser.state.get(value, {}).items():
                state[f"adam.{name}.{moment}"] = entry.clone()
        return state

    def moments_schema(self) -> StateSchema:
        """Of the part ``adam``, which is there after the first step."""
        moments: State = {}
        for name, value in self.logarithms.items():
            moments[f"{name}.step"] = torch.tensor(0.0, dtype=torch.float32)
            moments[f"{name}.exp_avg"] = moments[f"{name}.exp_avg_sq"] = value
        return schema_of(moments)

    def restore(self, state: State) -> None:
        """Return to where learning stood."""
        self.bounded_steps = state["bounded_steps"]
        for name, value in self.logarithms.items():
            with torch.no_grad():
                value.copy_(state[f"log.{name}"])
            found = part_of(state, f"adam.{name}")
            if found:
                own = {moment: entry.clone() for moment, entry in found.items()}
                self._optimiser.state[value] = own


def _with(kernel: Kernel, values: dict[str, Tensor]) -> Kernel:
    own = kernel.parameters()
    known = {name: value for name, value in values.items() if name in own}
    return kernel.with_parameters({**own, **known})


def widened(model: RowwiseGaussian, lengthscale_range: float) -> RowwiseGaussian:
    """The model on an embedding that holds for lengthscales longer by this factor.

    Raises
    ------
    ValueError
        If no embedding within the whitening's limits does.
    """
    start = model.whitening
    kernel = start.kernel
    longest = {
        name: value * (lengthscale_range if name.endswith("lengthscale") else 1.0)
        for name, value in kernel.parameters().items()
    }
    widest = ToeplitzWhitening(
        kernel.with_parameters(longest),
        start.grid,
        lengthscales=[s * lengthscale_range for s in start.lengthscales],
        nugget=start.nugget,
        limits=start.limits,
        solver=start.solver,
    )
    return model.on(widest.with_kernel(kernel))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTerms:
    """A minibatch seen while learning: its rows (without gradients) and its bound."""

    rows: Rows
    expected: Float[Tensor, " b"]


def learning_terms(
    model: RowwiseGaussian,
    data: GaussianData,
    q: Gaussian,
    index: Int[Tensor, " b"],
    hyperparameters: Hyperparameters,
) -> LearningTerms:
    """Expected log likelihoods of a minibatch, their gradient accumulated.

    The gradient is that of ``Σ_n a'_n / |B|`` in the logarithms of θ and τ², through
    the whole row computation; the KL term does not depend on them.
    """

    def solved(rows: Int[Tensor, " b"]) -> tuple[Tensor, Tensor, Tensor]:
        return _own_terms(model, data, q, rows, hyperparameters, len(index))

    features, variances, expected = model.shared_out(solved, index)
    hyperparameters.add_up(model.group)
    return LearningTerms(rows=Rows(features, variances), expected=expected)


def _own_terms(
    model: RowwiseGaussian,
    data: GaussianData,
    q: Gaussian,
    index: Int[Tensor, " b"],
    hyperparameters: Hyperparameters,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Features, variances and terms of some rows of a minibatch of ``count``."""
    empty = torch.zeros(0, model.latent_size, dtype=model.dtype)
    features, variances, expected = [empty], [empty[:, 0]], [empty[:, 0]]
    for part in index.split(_rows_at_once(model)) if len(index) else ():
        noisy = replace(data, common_noise=hyperparameters.common_noise())
        rows = differentiable_rows(model, hyperparameters.kernel(), part)
        terms = expected_log_likelihood(noisy, part, rows, q)
        hyperparameters.accumulate(terms.sum() / count)
        features.append(rows.features.detach())
        variances.append(rows.variance.detach())
        expected.append(terms.detach())
    return torch.cat(features), torch.cat(variances), torch.cat(expected)


def _rows_at_once(model: RowwiseGaussian) -> int:
    nodes = model.nodes_per_row * model.whitening.grid.size
    return max(1, min(model.chunk, int(_PAIRS / nodes)))
