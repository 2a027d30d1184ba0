"""Stochastic variational inference: one engine for maps (HIP-GP) and regression.

A problem is ``Whitening × Likelihood × family of q(ε)``; each of them is a seam:

- a *whitening* (:mod:`dustmap.whitening`) makes features ``k_n`` and, with the rows of
  :class:`~dustmap.models.rowwise.RowwiseGaussian`, conditional variances ``v_n``;
- a *likelihood* (:mod:`dustmap.likelihoods`) makes ``E_q[ln p(y_n | f_n)]`` and its
  gradients from the moments of ``q(f_n)``;
- a *family* (:class:`NaturalGaussian`: mean-field, blocks, full) moves by
  natural gradients, hyperparameters by Adam in alternation.

One :class:`~dustmap.inference.svi.training.Trainer` runs them all; :func:`fit_svgp` is
for functionals and any likelihood, :func:`fit_svi` for a forward model with normal
noise. HIP-GP as published is ``HipSettings()``: blocks on a Toeplitz embedding.
"""

from dustmap.inference.svi.bound import Svgp
from dustmap.inference.svi.fit import SvgpResult, fit_svgp, fit_svi, solve_mean
from dustmap.inference.svi.gaussian import NaturalGaussian, initial_family
from dustmap.inference.svi.settings import HipSettings, SvgpSettings
