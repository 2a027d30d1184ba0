"""What the user may choose of a regression, and the method that suits a table."""

from __future__ import annotations

from dataclasses import dataclass

from dustmap.likelihoods import LIKELIHOODS, Likelihood
from pipelines.base.errors import InputError

WHITENINGS = ("cholesky", "ciq")
# So many rows are always solved exactly, or at most; a grid has so many axes at most.
EXACT_ROWS, MOST_EXACT, AXES = 2_000, 8_000, 3

# Which likelihoods a method can have: the others have closed forms for normal noise.
_NORMAL = tuple(name for name, kind in LIKELIHOODS.items() if kind.conjugate)
_MIXTURES = (n for n, kind in LIKELIHOODS.items() if kind.mixture_of_normals)
_ABLE = {
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
    ``split_column`` says which (1) and which to fit (0).

    Raises
    ------
    InputError
        If a choice is unknown, two contradict each other, or the fraction is none.
    """

    target: str
    inputs: tuple[str, ...] | None = None
    likelihood: str = "gaussian"
    method: str = "auto"
    whitening: str = "cholesky"
    seed: int = 0
    test_fraction: float = 0.2
    split_column: str | None = None

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

    def method_for(self, rows: int, axes: int) -> tuple[str, str]:
        """The method and why, for so many rows to fit and inputs.

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
            return self.method, "as asked for"
        if self.noise.classes:
            return "svgp", "classes"
        if self.whitening != "cholesky":
            return "svgp", f"whitening {self.whitening}"
        if self.noise.conjugate and rows <= EXACT_ROWS:
            return "exact", f"no more than {EXACT_ROWS:,} rows"
        if axes <= AXES:
            return "hip", f"{axes} input{'s' * (axes > 1)}"
        why = f"{axes} inputs, too many for a grid"
        if self.noise.conjugate and rows <= MOST_EXACT:
            return "exact", f"{why}, no more than {MOST_EXACT:,} rows"
        return "svgp", why
