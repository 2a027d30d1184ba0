"""Keys that are gone, and what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.base.progress import say

_SIMULATE = "in Python, dustmap.simulate takes"

GONE = {
    "budget.minutes": "a fit has no limit of time; use your batch system's limit, and "
    "fit --resume",
    "model.ray_step": "rays have steps of half a cell; leave it out",
    "inference.sample_tolerance": "samples of a gaussian density have 1e-2; leave it "
    "out",
    "inference.anisotropic": "one factor of all lengthscales is learnt; for other axes "
    "give prior.lengthscale = [x, y, z]",
    "svi.max_embedding": "an embedding has at most 2e7 points; leave it out",
    "svi.learning_rate": "the minibatches are averaged; leave it out",
    "dust.scale_height": f"{_SIMULATE} dust_scale_height",
    "dust.scale_length": f"{_SIMULATE} dust_scale_length",
    "dust.slope": f"{_SIMULATE} slope",
    "dust.stirring": f"{_SIMULATE} stirring",
    "tracers": f"{_SIMULATE} star_scale_height, star_scale_length, magnitude_limit, "
    "dimming, complete_within",
    "errors.scatter": f"{_SIMULATE} scatter",
    "errors.growth": f"{_SIMULATE} growth",
    "errors.parallax_over_error": f"{_SIMULATE} parallax_over_error",
}


def drop_gone(recorded: dict[str, Any], path: Path) -> None:
    """Remove these keys from a configuration that an earlier version recorded."""
    dropped = []
    for key in GONE:
        section, _, name = key.partition(".")
        if name in recorded.get(section, ()):
            del recorded[section][name]
            dropped.append(key)
    if dropped:
        say(f"note: {path}: ignored what means nothing any more: {', '.join(dropped)}")
