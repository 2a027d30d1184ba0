"""What a run of stochastic variational inference leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.svi.gaussian import NaturalGaussian, StepReport
from dustmap.inference.svi.model import Svgp
from dustmap.inference.svi.plateau import LateRise
from dustmap.linalg.cg import Solution
from dustmap.models.row_report import RowReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SvgpResult:
    """What a fit leaves behind.

    Parameters
    ----------
    model
        Prior, q, likelihood and mean with the final hyperparameters; it predicts.
    bound
        On all data, at the end.
    count
        Steps of the run.
    recorded
        The steps at which traces were taken.
    bound_trace
        The minibatch estimates of the bound.
    hyperparameter_trace
        What was learnt, by name.
    rows
        How the solves behind features ended.
    steps
        What the safeguards of the natural steps did.
    bounded_steps
        Steps of a lengthscale that its range cut short.
    solves
        How iterative solves with the precision of q ended, if there were any.
    mean_solution
        Status of the final solve for m, if one was made.
    rise
        What the last tenth of the steps added to the bound; ``None`` if not watched.
    """

    model: Svgp
    bound: float
    count: int
    recorded: Int[Tensor, " t"]
    bound_trace: Float[Tensor, " t"]
    hyperparameter_trace: dict[str, Tensor]
    rows: RowReport
    steps: StepReport
    bounded_steps: int = 0
    solves: RowReport | None = None
    mean_solution: Solution | None = None
    rise: LateRise | None = None

    @property
    def q(self) -> NaturalGaussian:
        """The variational posterior of ε."""
        return self.model.q

    @property
    def message(self) -> str:
        """A few lines for people."""
        lines = [f"bound {self.bound:.6g} after {self.count} steps"]
        if self.rise is not None:
            lines.append(str(self.rise))
        if self.rows.iterations or self.rows.below_zero:
            lines.append(f"features: {self.rows}")
        lines.append(str(self.steps))
        if self.bounded_steps:
            lines.append(
                f"{self.bounded_steps} steps ended at the bound of a lengthscale: "
                "start closer or widen lengthscale_range"
            )
        if self.solves is not None and self.solves.unconverged:
            lines.append(
                f"{self.solves.unconverged} of {self.solves.rows} solves with the "
                f"precision of q stopped short (worst residual "
                f"{self.solves.residual:.1e}): raise solver_max_steps or take "
                "solves='cholesky'"
            )
        if self.mean_solution is not None:
            lines.append(f"mean: {self.mean_solution.message}")
        return "\n".join(lines)
