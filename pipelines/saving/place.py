"""On which device and in which precision a fit computes."""

from __future__ import annotations

from typing import TypedDict

import torch

from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.model.plan import uses_cuda


class Place(TypedDict):
    """Device and precision of the products, and where random numbers come from."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator


def place_of(config: FitConfig, generator: torch.Generator) -> Place:
    """The place that the configuration names; ``auto`` takes CUDA where there is one.

    The engine svi computes in float64 whatever the configuration says.

    Raises
    ------
    InputError
        If CUDA is asked for and absent, or TF32 is on.
    """
    wanted = config.inference.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "inference.device = cuda, but torch sees no CUDA device: install a CUDA "
            "build of torch (see the README) or use device = auto"
        )
    name = "cuda" if uses_cuda(config) else "cpu"
    inference = config.inference
    precise = inference.dtype == "float64" or inference.engine == "svi"
    if name == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        raise InputError("TF32 is on: it is too coarse for this; switch it off")
    dtype = torch.float64 if precise else torch.float32
    return {"device": torch.device(name), "dtype": dtype, "generator": generator}
