"""Public checkers for operators and forward models.

Each raises an ``AssertionError`` that states the fault and its size, so that a test of
a new object takes one line::

    check_linear_operator(MyOperator(...), generator=torch.Generator())

Errors are relative to the size of the computed values, never absolute: a wrong adjoint
of small scale does not pass, and results do not depend on units.
"""

from dustmap.testing.models import check_forward_model
from dustmap.testing.operators import check_linear_operator

__all__ = ["check_forward_model", "check_linear_operator"]
