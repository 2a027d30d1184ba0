"""A residual that was not learnt."""

from __future__ import annotations

import math

import torch

from dustmap.residual.covariance import Rays, SubgridCovariance
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField


def field_of(
    rows: Rays,
    residuals: torch.Tensor,
    noise: torch.Tensor,
    weights: torch.Tensor,
    *,
    cube: DensityCube | None = None,
    subgrid: SubgridCovariance | None = None,
    tails: float = math.inf,
) -> ResidualField:
    """Without nugget and outliers."""
    return ResidualField(
        rays=rows,
        residuals=residuals,
        stated=noise,
        noise=noise,
        weights=weights,
        nugget=0.0,
        outliers=0.0,
        stretch=10.0,
        cube=cube,
        subgrid=subgrid,
        tails=tails,
    )
