"""What a run of stochastic variational inference leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from dustmap.inference.elbo import GaussianData
from dustmap.inference.low_rank import NaturalGaussian
from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.models.row_report import RowReport
from dustmap.models.rowwise import RowwiseGaussian


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SviResult:
    """What a run of SVI leaves behind.

    Parameters
    ----------
    q
        The variational posterior.
    model
        The forward model with the final kernel; ``model.at`` predicts elsewhere.
    data
        The data with the final common noise.
    elbo
        The bound on all data, at the end.
    elbo_trace
        Its minibatch estimate before every step.
    hyperparameter_trace
        What was learnt, before every step, by name.
    limited_steps
        Steps of m that were cut for stability.
    bounded_steps
        Steps of a lengthscale that its range cut short.
    mean_solution
        Status of the final solve for m, if one was made.
    """

    q: NaturalGaussian
    model: RowwiseGaussian
    data: GaussianData
    elbo: float
    elbo_trace: Float[Tensor, " t"]
    hyperparameter_trace: dict[str, Tensor]
    limited_steps: int
    bounded_steps: int
    mean_solution: Solution | None

    @property
    def kernel(self) -> Kernel:
        """The final kernel."""
        return self.model.whitening.kernel

    @property
    def common_noise(self) -> float:
        """The final τ²."""
        return float(self.data.common_noise)

    @property
    def rows(self) -> RowReport:
        """What the rows' solves were worth."""
        return self.model.report

    @property
    def message(self) -> str:
        """A few lines for people."""
        lines = [
            f"bound {self.elbo:.6g} after {len(self.elbo_trace)} steps, of which "
            f"{self.limited_steps} were cut for stability",
            str(self.rows),
        ]
        if self.bounded_steps:
            lines.append(
                f"{self.bounded_steps} steps ended at the bound of a lengthscale: "
                "start closer or widen lengthscale_range"
            )
        if self.mean_solution is not None:
            lines.append(f"mean: {self.mean_solution.message}")
        return "\n".join(lines)
