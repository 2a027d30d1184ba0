"""What ranks need, imported once for all of them, and its loops compiled."""

import torch

import dustmap.inference.full_batch
import dustmap.inference.svi
import dustmap.models.gaussian
import dustmap.models.lognormal  # noqa: F401
from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.projection import projection

torch.set_num_threads(1)
_BOX = Grid(shape=(3, 3), spacing=(1.0, 1.0), origin=(-1.0, -1.0))
_W = projection(
    Torus(grid=_BOX, shape=(4, 4)),
    LineIntegrals(torch.ones(1, 2, dtype=torch.float64), FixedStep(step=0.5)),
)
for width in (1, 2, 9):
    _X = torch.ones(width, 16, dtype=torch.float64)
    _ = _W.rmatvec(_W.matvec(_X)) + _W.gram(_X, torch.ones(1, dtype=torch.float64))
