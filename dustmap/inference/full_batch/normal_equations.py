r"""The likelihood of very many stars along rays, as normal equations.

With a tree of rays (:mod:`dustmap.projection.ray_tree`) stars see a density through the
integrals :math:`v = C\, T\, \rho` at the places of rays, :math:`y = P v + \eta`. If the
noise is independent, the log likelihood is, but for a constant,

.. math::
   -\tfrac12\, v^\top G\, v + b^\top v , \qquad
   G = P^\top \Sigma^{-1} P , \quad b = P^\top \Sigma^{-1} y .

b and the vectors of all solves are as long as there are places, however many stars
there are; samples add :math:`P^\top \Sigma^{-1/2} z` to b. A product with G is one pass
over the stars (:mod:`dustmap.projection.star_rows`), for up to eight vectors at once.

G itself is no smaller. With distance errors of 2% to 12% a place has 160 neighbours in
it on cells of 25 pc, and their number grows as the number of cells along a ray: of nine
million places, on cells of 12 pc, G would take 12 GiB or more, fifty million stars take
one.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.operator import inner
from dustmap.noise import Likelihood, NoiseModel
from dustmap.projection.star_rows import StarRows


class NormalEquations(Likelihood):
    """``½ vᵀ G v − bᵀ v`` of the integrals v at the places of rays; y is b.

    ``rows`` is P, and ``noise`` Σ of the stars.
    """

    def __init__(self, rows: StarRows, noise: NoiseModel) -> None:
        self._rows, self._noise = rows, noise
        self._precision = (1.0 / noise.variance).to(rows.dtype)
        self._last: tuple[Tensor, Tensor] | None = None

    def of_stars(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b p"]:
        """Return ``Pᵀ Σ⁻¹ y``."""
        return self._rows.rmatvec(self._noise.apply_precision(y))

    def apply_precision(self, x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b p"]:
        return self._rows.gram(x, self._precision)

    def pull(
        self, y: Float[Tensor, "*b p"], x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b p"]:
        return y - self._at(x)

    def misfit(
        self, y: Float[Tensor, "*b p"], x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b"]:
        return inner(x, self._at(x) - 2 * y)

    def _at(self, x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b p"]:
        """Return ``G v`` of a prediction: value and gradient follow each other."""
        if self._last is None or self._last[0] is not x:
            self._last = x, self.apply_precision(x)
        return self._last[1]

    def errors(
        self, white: Float[Tensor, "*b n"], shared: Float[Tensor, "*b n"] | float = 0.0
    ) -> Float[Tensor, "*b p"]:
        return self.of_stars(self._noise.errors(white, shared).to(self._precision))
