r"""Linear functionals of a field as nodes, weights and derivative orders.

``L_n ρ = Σ_j w_nj ∂^{α_nj} ρ(x_nj)``: a point value has one node, a derivative one node
with an axis, a line integral many nodes along the ray. Covariances and projections use
only :class:`Nodes`, so one data set may mix all kinds.
"""

from dustmap.functionals.base import Functionals, Nodes
from dustmap.functionals.distance_marginalized import DistanceMarginalizedIntegrals
from dustmap.functionals.line_integrals import LineIntegrals
from dustmap.functionals.points import Derivatives, PointValues
from dustmap.functionals.stack import Stack
from dustmap.quadrature import (
    FixedStep,
    GaussLegendre,
    MonteCarlo,
    Rule,
    StepsOutwards,
)

__all__ = [
    "Derivatives",
    "DistanceMarginalizedIntegrals",
    "FixedStep",
    "Functionals",
    "GaussLegendre",
    "LineIntegrals",
    "MonteCarlo",
    "Nodes",
    "PointValues",
    "Rule",
    "Stack",
    "StepsOutwards",
]
