"""The families of q(ε) by name, each at the prior ``N(0, I)``."""

from __future__ import annotations

import math

from dustmap.inference.svi.blocks import block_prior
from dustmap.inference.svi.gaussian import NaturalGaussian
from dustmap.inference.svi.precision import PrecisionGaussian
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.rowwise import RowwiseGaussian


def initial_family(forward: RowwiseGaussian, settings: SvgpSettings) -> NaturalGaussian:
    """The prior in the family asked for.

    Raises
    ------
    ValueError
        If it would not fit into memory.
    """
    size, shape = forward.latent_size, forward.whitening.latent_shape
    iterative = settings.family == "full" and settings.solves == "iterative"
    # Points per axis of a block.
    widths = {"mean-field": 1, "block": settings.block, "full": max(shape)}
    width = widths[settings.family]
    numbers = math.prod(min(width, n) for n in shape)
    # The precision, its factor and the fresh estimate exist at once; with iterative
    # solves the precision alone.
    needed = (1 if iterative else 3) * 8 * size * numbers
    if needed > settings.covariance_memory:
        raise ValueError(
            f"a {settings.family} covariance of {size} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than "
            f"{settings.covariance_memory / 2**30:.1f}: use smaller blocks, "
            "fewer inducing points, or iterative solves"
        )
    if iterative:
        solver = ConjugateGradients(
            rtol=settings.solver_rtol, max_steps=settings.solver_max_steps
        )
        return PrecisionGaussian(size, solver=solver, device=forward.device)
    return block_prior(shape, width, forward.device)
