"""What the user may choose of a regression, and the methods that suit a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dustmap.likelihoods import LIKELIHOODS, Likelihood
from pipelines.base.errors import InputError

WHITENINGS = ("cholesky", "ciq")
# Up to so many rows `auto` is exact, and exact may be asked for; a grid's most axes.
EXACT_ROWS, MOST_EXACT, AXES = 2_000, 8_000, 3

# Which likelihoods a method can have: the others have closed forms for normal noise.
_NORMAL = tuple(name for name, kind in LIKELIHOODS.items() if kind.conjugate)
_MIXTURES = (n for n, kind in LIKELIHOODS.items() if kind.mixture_of_normals)
_ABLE = {
    "neighbours": _NORMAL,
    "hip": (*_NORMAL, *_MIXTURES),
    "svgp": tuple(LIKELIHOODS),
    "sgpr": _NORMAL,
    "exact": _NORMAL,
}
_CHOICES = {
    "likelihood": tuple(LIKELIHOODS),
    "method": ("auto", *_ABLE),
    "whitening": WHITENINGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices; what is ``None`` or ``auto`` is chosen from the table.

    ``test_fraction`` of the rows is held out at random by ``seed``, unless
    ``split_column`` says which (1) and which to fit (0). Methods are compared as long
    as their estimated times keep the ``time_budget`` [s]; the fastest always is.

    Raises
    ------
    InputError
        If a choice is unknown, two contradict each other, the fraction is none or the
        budget is not positive.
    """

    target: str
    inputs: tuple[str, ...] | None = None
    likelihood: str = "gaussian"
    method: str = "auto"
    whitening: str = "cholesky"
    seed: int = 0
    test_fraction: float = 0.2
    split_column: str | None = None
    time_budget: float = 30.0

    @property
    def noise(self) -> type[Likelihood]:
        """The likelihood's class."""
        return LIKELIHOODS[self.likelihood]

    def __post_init__(self) -> None:
        for name, names in _CHOICES.items():
            value = getattr(self, name)
            if value not in names:
                raise InputError(f"--{name} takes {', '.join(names)}, got {value!r}")
        if not 0 < self.test_fraction < 1:
            raise InputError(
                "--test-fraction lies between 0 and 1, both excluded, got "
                f"{self.test_fraction}"
            )
        if not 0 < self.time_budget < math.inf:
            raise InputError(
                f"--time-budget is a positive number of seconds, got {self.time_budget}"
            )
        if self.inputs is not None and self.target in self.inputs:
            raise InputError(
                f"the target {self.target!r} is among the inputs: leave it out there"
            )
        if self.likelihood not in _ABLE.get(self.method, LIKELIHOODS):
            others = [m for m, names in _ABLE.items() if self.likelihood in names]
            raise InputError(
                f"--method {self.method} cannot have the likelihood "
                f"{self.likelihood}: use {' or '.join(others)}, or leave it out"
            )
        if self.whitening != "cholesky" and self.method not in ("auto", "svgp"):
            raise InputError(
                f"--whitening {self.whitening} is one of svgp's, --method "
                f"{self.method} has no such choice: leave it out"
            )

    def candidates(self, rows: int, axes: int) -> tuple[tuple[str, ...], str]:
        """Methods for so many rows to fit and inputs, and why if there is but one.

        Raises
        ------
        InputError
            If a method was asked for that cannot have so many inputs or rows.
        """
        if self.method == "hip" and axes > AXES:
            raise InputError(
                f"--method hip works on a grid of one to three inputs, here are "
                f"{axes}: choose some with --inputs, or another method"
            )
        if self.method == "exact" and rows > MOST_EXACT:
            raise InputError(
                f"--method exact takes at most {MOST_EXACT} rows to fit, here are "
                f"{rows}: use another method, or leave it out"
            )
        if self.method != "auto":
            return (self.method,), "as asked for"
        if self.noise.classes:
            return ("svgp",), "classes"
        if self.whitening != "cholesky":
            return ("svgp",), f"whitening {self.whitening}"
        if not self.noise.conjugate:
            if axes <= AXES:
                return ("hip",), f"{self.likelihood}, {axes} input{'s' * (axes > 1)}"
            return ("svgp",), f"{self.likelihood}, {axes} inputs: too many for a grid"
        if rows <= EXACT_ROWS:
            return ("exact",), f"no more than {EXACT_ROWS:,} rows"
        grid = ("hip",) * (axes <= AXES)
        dense = ("exact",) * (rows <= MOST_EXACT)
        return ("neighbours", *grid, *dense, "svgp"), ""
