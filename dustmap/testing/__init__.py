"""Public checkers for operators, kernels and forward models.

Each raises ``AssertionError`` saying what is wrong and by how much, so that a test of
something new takes one line::

    check_linear_operator(MyOperator(...), generator=torch.Generator())

Errors are relative to the size of what was computed, never absolute: a wrong adjoint
of small scale does not pass, and a change of units changes no verdict.
"""

from dustmap.testing.kernels import check_kernel
from dustmap.testing.models import check_forward_model
from dustmap.testing.operators import check_linear_operator

__all__ = ["check_forward_model", "check_kernel", "check_linear_operator"]
