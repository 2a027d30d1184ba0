"""What a run of SVI will cost, measured on a few rows before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from dustmap.inference.svi.blocks import BlockGaussian
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.families import initial_family
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.models.rowwise import FeatureRows, RowwiseGaussian

# A row with its derivative: a solve forward, one backward, and autograd's bookkeeping.
_LEARNING_FACTOR = 3.0
_SAMPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Seconds of a row, of a step and of the run without the final mean; bytes."""

    seconds_per_row: float
    seconds_per_step: float
    rows: int
    steps: int
    memory: int
    kept: bool
    iterations: int

    @property
    def seconds(self) -> float:
        """Of the whole run, without the final solve of the mean."""
        return self.rows * self.seconds_per_row + self.steps * self.seconds_per_step

    def __str__(self) -> str:
        how = "each solved once and kept" if self.kept else "solved anew in every epoch"
        unit, divisor = "h", 3600
        if self.seconds < 7200:
            unit, divisor = ("min", 60) if self.seconds >= 120 else ("s", 1)
        return (
            f"svi: {self.rows} row solves ({how}) at "
            f"{1e3 * self.seconds_per_row:.1f} ms ({self.iterations} "
            f"iterations) and {self.steps} steps at "
            f"{1e3 * self.seconds_per_step:.1f} ms: about "
            f"{self.seconds / divisor:.0f} {unit}, {self.memory / 2**30:.2f} GiB"
        )


def estimate_cost(
    model: RowwiseGaussian, data: Observations, settings: SvgpSettings
) -> CostEstimate:
    """Time a few rows and one step of q, and scale to the run.

    Raises
    ------
    ValueError
        If the family's covariance does not fit into the memory it may take.
    """
    count, q = len(data), initial_family(model, settings)
    assert isinstance(q, BlockGaussian)
    size = min(count, settings.batch_size)
    index = torch.linspace(0, count - 1, min(count, _SAMPLE)).to(torch.int64)
    sample = model.at(model.functionals.select(index))
    started = time.perf_counter()
    rows = sample.rows(torch.arange(len(index)))
    solved = time.perf_counter()
    again = torch.arange(size) % len(index)
    repeated = FeatureRows(rows.features[again], rows.variance[again])
    batch = data.select(index[again]).batch(repeated)
    stepping = time.perf_counter()
    moved = q.safe_step(batch, 0.5)[0]
    # Waits for the device.
    float(moved.trace())
    stepped = time.perf_counter()
    moving = settings.learns("kernel") or settings.learns("points")
    kept = not moving and model.kept_bytes <= settings.row_memory
    passes = 1.0 if kept else settings.epochs + 1.0
    if moving:
        passes = 2 + (settings.epochs - 1) * _LEARNING_FACTOR
    memory = 3 * 8 * moved.precision.numel() + 8 * 4 * size * model.latent_size
    return CostEstimate(
        seconds_per_row=(solved - started) / len(index),
        seconds_per_step=stepped - stepping,
        rows=round(count * passes),
        steps=settings.total_steps(count),
        memory=memory + (model.kept_bytes if kept else 0),
        kept=kept,
        iterations=sample.report.iterations,
    )
