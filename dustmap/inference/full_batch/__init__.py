"""Full-batch inference: the mode by Gauss–Newton steps, samples by conjugate gradients.

:func:`infer` runs it (:mod:`~dustmap.inference.full_batch.engine` has the equations).
"""

from dustmap.inference.full_batch.engine import infer
from dustmap.inference.full_batch.gauss_newton import OnStep, Precision
from dustmap.inference.full_batch.noise import Noise, NoiseState
from dustmap.inference.full_batch.pace import SecondsLeft, unlimited
from dustmap.inference.full_batch.settings import FullBatch, FullBatchResult

__all__ = [
    "FullBatch",
    "FullBatchResult",
    "Noise",
    "NoiseState",
    "OnStep",
    "Precision",
    "SecondsLeft",
    "infer",
    "unlimited",
]
