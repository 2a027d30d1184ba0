"""Posterior samples as ordinary zarr arrays, which any reader of zarr understands."""

from pipelines.samples.reading import check_samples, read_samples
from pipelines.samples.writing import SamplesReport, write_sample_cubes, write_samples

__all__ = [
    "SamplesReport",
    "check_samples",
    "read_samples",
    "write_sample_cubes",
    "write_samples",
]
