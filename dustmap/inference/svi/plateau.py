r"""Whether the bound had ceased to rise when training ended.

Minibatches scatter by far more than a bound still gains near its top. The same rows,
before and after, do not: with ``e_n = E_q[ln p(y_n | f_n)]``, before and after a
stretch of steps,

``ΔL / N ≈ mean_n(e'_n − e_n) − (KL' − KL) / N``,

exact if the rows are all, else with the standard error of a mean of paired differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import Observations, expected_terms
from dustmap.inference.svi.model import Svgp

# The share of all steps, at their end, over which the rise is measured.
_STRETCH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRise:
    """What the last ``steps`` added to the bound, per observation [nats].

    ``error`` is the standard error by the choice of ``rows`` observations.
    """

    value: float
    error: float
    steps: int
    rows: int

    def __str__(self) -> str:
        error = f" ± {self.error:.1g}" if self.error else ""
        return (
            f"the last {self.steps} steps moved the bound by {self.value:+.1e}{error} "
            f"nats per row ({self.rows} rows)"
        )


class PlateauCheck:
    """Measures the late rise by a random choice of rows.

    Parameters
    ----------
    count
        Observations there are.
    rows
        How many of them to look at; 0 measures nothing.
    steps
        Of the whole training.
    seed
        Of the choice.
    """

    def __init__(self, count: int, *, rows: int, steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._count = count
        self._index = torch.randperm(count, generator=generator)[:rows].sort().values
        self._before: tuple[Tensor, float] | None = None
        self.steps = max(1, int(_STRETCH * steps))
        self.begin = steps - self.steps

    def look(self, model: Svgp, data: Observations) -> None:
        """Note where the bound stands before the stretch."""
        if len(self._index):
            self._before = self._level(model, data)

    def rise(self, model: Svgp, data: Observations) -> LateRise | None:
        """What the stretch since :meth:`look` added, if there was a look."""
        if self._before is None:
            return None
        (was, old), (now, new) = self._before, self._level(model, data)
        gain, rows = now - was, len(self._index)
        error = 0.0
        if rows < self._count:
            error = float(gain.std()) / math.sqrt(rows) if rows > 1 else math.inf
        return LateRise(
            value=float(gain.mean()) - (new - old) / self._count,
            error=error,
            steps=self.steps,
            rows=rows,
        )

    def _level(
        self, model: Svgp, data: Observations
    ) -> tuple[Float[Tensor, " r"], float]:
        """``e_n`` of the rows, and the KL term."""
        forward = model.forward
        part = forward.at(forward.functionals.select(self._index))
        terms = expected_terms(part, data.select(self._index), model.q)
        return terms, model.q.divergence()
