r"""Whether the bound had ceased to rise when training ended.

Minibatches scatter by far more than a bound still gains near its top. The same rows,
before and after, do not: with ``e_n = E_q[ln p(y_n | f_n)]``, before and after a
stretch of steps,

``ΔL / N ≈ mean_n(e'_n − e_n) − (KL' − KL) / N``,

exact if the rows are all, else with the standard error of a mean of paired differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import divergence_of
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
    """The rows by which the late rise is measured, and their terms before it.

    Parameters
    ----------
    functionals, values
        All of the data.
    rows
        How many of them to look at, drawn at random.
    steps
        Of the whole training.
    generator
        Draws the rows.
    """

    def __init__(
        self,
        functionals: Functionals,
        values: Float[Tensor, " n"],
        *,
        rows: int,
        steps: int,
        generator: torch.Generator,
    ) -> None:
        self._count = len(values)
        order = torch.randperm(self._count, generator=generator)
        self._index = order[:rows].sort().values
        self._functionals = functionals.select(self._index)
        self._values = values[self._index]
        self._seed = int(torch.randint(2**62, (), generator=generator))
        self.steps = max(1, int(_STRETCH * steps))
        self.begin = steps - self.steps
        self._before: tuple[Tensor, float] | None = None

    def look(self, model: Svgp) -> None:
        """Note where the bound stands before the stretch."""
        self._before = self._level(model)

    def rise(self, model: Svgp) -> LateRise:
        """What the stretch since :meth:`look` added.

        Raises
        ------
        ValueError
            If nobody looked before.
        """
        if self._before is None:
            raise ValueError("a rise needs a look before: call look first")
        (was, old), (now, new) = self._before, self._level(model)
        gain, count = now - was, len(self._index)
        error = 0.0
        if count < self._count:
            error = float(gain.std()) / math.sqrt(count) if count > 1 else math.inf
        return LateRise(
            value=float(gain.mean()) - (new - old) / self._count,
            error=error,
            steps=self.steps,
            rows=count,
        )

    def _level(self, model: Svgp) -> tuple[Float[Tensor, " r"], float]:
        """``e_n`` of the rows, and the KL term."""
        own = replace(model, likelihood=model.likelihood.select(self._index))
        # The same draws both times: where the KL term is an estimate its error cancels.
        same = torch.Generator().manual_seed(self._seed)
        expected = own.expected(self._functionals, self._values)
        return expected, divergence_of(model.q, same).value
