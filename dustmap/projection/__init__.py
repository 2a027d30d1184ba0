"""W: functionals as sparse weights on a periodic grid."""

from dustmap.projection.matrix import Interpolation, Projection, projection
