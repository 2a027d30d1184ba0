r"""Whitening by products with K alone: ``u = K^{1/2} ε``, ``k_n = K^{-1/2} k_un``.

J iterations of contour integral quadrature take ``O(J M²)`` (Pleiss et al. 2020,
NeurIPS, arXiv:2006.11267, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.roots import CIQ
from dustmap.whitening.inducing import Features, KernelMatrix, Values, Whitening


@dataclass(eq=False, kw_only=True)
class CiqWhitening(Whitening):
    """``u = K^{1/2} ε`` at points of any dimension; the nugget is a floor of K.

    A root that misses the tolerance of ``ciq`` issues a
    :class:`~dustmap.linalg.roots.RootWarning`, and its status is not converged.
    """

    ciq: CIQ = field(default_factory=CIQ)

    def __post_init__(self) -> None:
        self.covariance = KernelMatrix(self.kernel, self.points, nugget=self.nugget)

    def colour(self, eps: Values) -> Values:
        """Return ``K^{1/2} ε``; cost: a root."""
        rows = eps.reshape(-1, self.size)
        found = self.ciq.root(self.covariance.matvec, rows, self.nugget)
        return found.value.reshape(eps.shape)

    def colour_transpose(self, values: Values) -> Values:
        """Return ``K^{1/2} v``: the root is symmetric."""
        return self.colour(values)

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """Return ``K⁻¹ v`` by conjugate gradients, to the residual ``ciq.rtol``."""
        solver = ConjugateGradients(rtol=self.ciq.rtol, max_steps=self.ciq.max_steps)
        with torch.no_grad():
            return solver.solve(self.covariance.matvec, rhs.detach())

    def features(self, cross: Float[Tensor, "b p"]) -> Features:
        """Return ``k_n = K^{-1/2} k_un``; the status bounds its error."""
        root = self.ciq.inverse_root(self.covariance.matvec, cross, self.nugget)
        return root.value, (root.value**2).sum(dim=-1), root
