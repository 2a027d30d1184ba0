"""Full-batch inference: the mode by Gauss–Newton steps, samples by conjugate gradients.

:func:`infer` runs it (:mod:`~dustmap.inference.full_batch.engine` has the equations).
"""

from dustmap.inference.full_batch.engine import FullBatchResult, infer
from dustmap.inference.full_batch.settings import FullBatch
