"""Stages of a fit that solve neighbourhoods, on a device and on the CPU beside it.

``gpu_stages.py PART DEVICE SECONDS FOLDER SMALLER``
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from gpu_checks import CPU, rng, shared_dust
from gpu_parts import Part, main
from gpu_table import Row, peak_memory, seconds

from dustmap.inference.scales.neighbour_likelihood import NeighbourLikelihood
from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.kernels import Matern12
from dustmap.models.means import ConstantMean
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import Neighbourhoods
from dustmap.residual.neighbours import nearest, without_self

# Stars of the learning of scales and of weights, their neighbours and those of noise
# and of held-out stars, as in a fit by its defaults.
SCALED, LEARNERS, KRIGED, HELD_OUT = 4_000, 3_000, 200_000, 20_000


def stages(part: Part) -> bool:
    """Scales, precision of the noise, weights and held-out stars."""
    good = True
    for stage in (scales, noise, weights, held_out):

        def measure(stage=stage) -> Row:
            count, there = stage(part.small, part.device)
            took = seconds(there, part.device)
            row = {"neighbourhoods": count, "device [ms]": 1e3 * took}
            if part.device.type == "cuda":
                row["waits"] = waits(there)
                row["peak [GiB]"] = peak_memory(part.device)
                beside = seconds(stage(part.small, CPU)[1], CPU)
                row |= {"CPU [ms]": 1e3 * beside, "CPU / device": beside / took}
            return row

        name = (stage.__doc__ or "").rstrip(".")
        good &= part.attempt(name, measure, needs=5.0)
    return good


def waits(action: Callable) -> int:
    """How often the host waits for the device in one call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def scales(small: int, device: torch.device) -> tuple[int, Callable]:
    """Learning of scales, one likelihood."""
    field = shared_dust(max(SCALED // small, 200))
    ends = field.rays.directions * field.rays.lengths[:, None]
    extinction = field.rays.density * field.rays.lengths
    given = {"kernel": Matern12, "positive": True, "device": device}
    likelihood = NeighbourLikelihood(ends, field.noise, **given)
    lengthscale = torch.full((3,), 60.0, dtype=torch.float64)
    at = PriorScales(
        lengthscale=lengthscale,
        std=1.0,
        mean=ConstantMean(value=2e-3),
        common_noise=0.0,
    )
    action = lambda: likelihood.conditionals(at).log_density(extinction)  # noqa: E731
    return len(likelihood), action


def noise(small: int, device: torch.device) -> tuple[int, Callable]:
    """Precision of the noise, 30 neighbours."""
    field, near = _with_neighbours(KRIGED // small, 30, device)
    return len(near), lambda: field.krige(field.rays, near)


def weights(small: int, device: torch.device) -> tuple[int, Callable]:
    """Learning of weights, one step."""
    field, near = _with_neighbours(max(LEARNERS // small, 100), 30, device)
    hoods = Neighbourhoods.of(field.covariance, field.rays, field.rays, near)
    given = field.noise, field.residuals[0]

    def step() -> torch.Tensor:
        at = field.weights.clone().requires_grad_()
        mean, variance = hoods.predict(at, *given)
        return torch.autograd.grad(mean.sum() + variance.sum(), at)[0]

    return len(near), step


def held_out(small: int, device: torch.device) -> tuple[int, Callable]:
    """Held-out stars, extinction and density from 128 neighbours."""
    field = shared_dust(max(KRIGED // small, 1_000), device)
    count = HELD_OUT // small
    turned = torch.randn(count, 3, generator=rng(5), dtype=torch.float64)
    unit = torch.nn.functional.normalize(turned / 20 + torch.eye(3)[0])
    ends = unit * (60 + 320 * torch.rand(count, 1, generator=rng(6)).double())
    values = torch.full((len(field.residuals), 2 * count), 0.3, dtype=torch.float64)
    both = torch.cat([ends, ends])
    return 2 * count, lambda: field.correct(both, values, points=count)


def _with_neighbours(
    count: int, size: int, device: torch.device
) -> tuple[ResidualField, torch.Tensor]:
    field = replace(shared_dust(count), device=device)
    points = field.rays.coordinates(field.stretch)
    return field, without_self(nearest(points, points, size + 1))


if __name__ == "__main__":
    main({"stages": stages})
