"""W: functionals as sparse weights on a periodic grid, whole or in slabs of columns."""

from dustmap.projection.matrix import Interpolation, Projection, projection
from dustmap.projection.slabs import slab_projection

__all__ = ["Interpolation", "Projection", "projection", "slab_projection"]
