"""How the solves behind exact features ended."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.linalg.cg import Solution

# How two reports are joined where it is not a sum.
_JOINED = {"residual": max, "iterations": max, "lowest": min}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """How the solves of all rows so far ended.

    ``residual`` is the worst true relative residual of a solve and ``iterations`` the
    most it took; ``unconverged`` counts rows that stopped short of the tolerance (on
    purpose with early stopping). ``below_zero`` counts rows whose ``v_n`` came out
    negative by rounding and was set to zero; ``lowest`` is the worst of them relative
    to ``k_nn``.
    ``modes_below_zero`` counts eigenvalues of a joint residual covariance likewise.
    """

    rows: int = 0
    unconverged: int = 0
    residual: float = 0.0
    iterations: int = 0
    below_zero: int = 0
    lowest: float = 0.0
    modes_below_zero: int = 0

    def with_solution(self, solution: Solution) -> RowReport:
        """The report with one more batch of solves."""
        if not len(solution.residual):
            return self
        return self.joined(
            RowReport(
                rows=len(solution.residual),
                unconverged=int((~solution.converged).sum()),
                residual=float(solution.residual.max()),
                iterations=int(solution.iterations.max()),
            )
        )

    def with_variances(self, relative: Float[Tensor, " b"]) -> RowReport:
        """The report with the ``v_n / k_nn`` of one more batch."""
        below = relative[relative < 0]
        if not len(below):
            return self
        return self.joined(RowReport(below_zero=len(below), lowest=float(below.min())))

    def joined(self, other: RowReport) -> RowReport:
        """This report and another one on other rows."""
        both = {n: (getattr(self, n), getattr(other, n)) for n in self.__slots__}
        return RowReport(
            **{n: _JOINED.get(n, operator.add)(*pair) for n, pair in both.items()}
        )

    def of_all(self, group: Group) -> RowReport:
        """The reports of all ranks, joined: the same on each."""
        own = torch.tensor([astuple(self)], dtype=torch.float64)
        total = RowReport()
        for numbers in group.gather(own, [1] * group.size, dim=0).tolist():
            pairs = zip(astuple(total), numbers, strict=True)
            values = [type(kind)(value) for kind, value in pairs]
            named = dict(zip(self.__slots__, values, strict=True))
            total = total.joined(RowReport(**named))
        return total

    def __str__(self) -> str:
        return (
            f"{self.rows} rows solved in at most {self.iterations} iterations, "
            f"{self.unconverged} short of the tolerance (worst residual "
            f"{self.residual:.1e}); {self.below_zero} conditional variances below zero "
            f"by rounding (lowest {self.lowest:.1e} of the prior variance), "
            f"{self.modes_below_zero} modes of residual covariances likewise"
        )
