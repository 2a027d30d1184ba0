"""Posterior samples on demand, from a file that holds what it takes to redraw them."""

from pipelines.redraw.cubes import write_sample_cubes
from pipelines.redraw.reading import StoredSamples, open_samples
from pipelines.redraw.writing import SamplesReport, write_samples

__all__ = [
    "SamplesReport",
    "StoredSamples",
    "open_samples",
    "write_sample_cubes",
    "write_samples",
]
