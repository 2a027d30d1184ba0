"""How samples from fits of their own are saved, finished or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dustmap.inference.perturbed import Fitted, Samples
from dustmap.journal import Pattern, State
from dustmap.models.base import ForwardModel


def saved_fits(fits: list[Fitted], model: ForwardModel) -> State:
    """Fits one after another."""
    none = torch.zeros(0, model.latent_size, dtype=model.dtype, device=model.device)
    return {
        "eps": torch.stack([fit.eps for fit in fits]) if fits else none,
        "promised": torch.tensor([f.promised for f in fits], dtype=torch.float64),
        "solves": torch.tensor([fit.iterations for fit in fits], dtype=torch.int64),
        "converged": torch.tensor([fit.converged for fit in fits], dtype=torch.bool),
    }


def fits_pattern(model: ForwardModel) -> Pattern:
    """What :func:`saved_fits` saves."""
    return {
        "eps": (model.dtype, (None, model.latent_size)),
        "promised": (torch.float64, (None,)),
        "solves": (torch.int64, (None,)),
        "converged": (torch.bool, (None,)),
    }


def fits_of(known: dict[str, Any], device: torch.device) -> list[Fitted]:
    """The fits that were saved."""
    columns = zip(
        known["eps"].to(device),
        known["promised"].tolist(),
        known["solves"].tolist(),
        known["converged"].tolist(),
        strict=True,
    )
    return [
        Fitted(eps=eps, promised=promised, iterations=iterations, converged=converged)
        for eps, promised, iterations, converged in columns
    ]


def saved_samples(samples: Samples, total: Tensor) -> State:
    """Finished samples, and the Σ they were fitted with."""
    return {
        "value": samples.value,
        "promised": samples.promised,
        "iterations": samples.iterations,
        "converged": samples.converged,
        "left": samples.left,
        "total": total,
    }


def samples_pattern(model: ForwardModel, samples: int, count: int) -> Pattern:
    """What :func:`saved_samples` saves, for so many observations."""
    return {
        "value": (model.dtype, (samples, model.latent_size)),
        "promised": (torch.get_default_dtype(), (samples,)),
        "iterations": (torch.int64, (samples,)),
        "converged": (torch.bool, (samples,)),
        "left": float,
        "total": (model.dtype, (count,)),
    }


def samples_of(known: dict[str, Any], device: torch.device) -> tuple[Samples, Tensor]:
    """The samples that were saved, and their Σ."""
    samples = Samples(
        value=known["value"].to(device),
        promised=known["promised"],
        iterations=known["iterations"],
        converged=known["converged"],
        left=known["left"],
    )
    return samples, known["total"].to(device)
