r"""Whitening: white ε ↔ correlated inducing values, ``u = R ε`` with ``R Rᵀ = K``.

Roots of one covariance differ by a rotation, under which posteriors stay the same:

- :class:`TorusWhitening`: the points fill a torus; ε are Fourier modes.
- :class:`LevelWhitening`: the same on nested tori, each finer than the last.
- :class:`ToeplitzWhitening`: the box of a circulant embedding (HIP-GP).
- :class:`CholeskyWhitening`: free points; exact, ``O(M³)`` once.
- :class:`CiqWhitening`: free points; products with K alone.

The last three share :class:`Whitening`.
"""

from dustmap.whitening.ciq import CiqWhitening
from dustmap.whitening.inducing import CholeskyWhitening, KernelMatrix, Whitening
from dustmap.whitening.modes import GridWhitening
from dustmap.whitening.nested import LevelWhitening, nested_tori, transformed_points
from dustmap.whitening.toeplitz import ToeplitzWhitening
from dustmap.whitening.torus import TorusWhitening, padded_torus
