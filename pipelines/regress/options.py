"""What the user may choose of a regression."""

from __future__ import annotations

from dataclasses import dataclass

from dustmap.likelihoods import LIKELIHOODS, Likelihood
from pipelines.base.errors import InputError

METHODS = ("auto", "hip", "svgp", "sgpr", "exact")
WHITENINGS = ("cholesky", "ciq")

# Which likelihoods a method can have: the others have closed forms for normal noise.
_NORMAL = tuple(name for name, kind in LIKELIHOODS.items() if kind.conjugate)
_MIXTURES = (n for n, kind in LIKELIHOODS.items() if kind.mixture_of_normals)
_ABLE = {
    "hip": (*_NORMAL, *_MIXTURES),
    "svgp": tuple(LIKELIHOODS),
    "sgpr": _NORMAL,
    "exact": _NORMAL,
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
        known = (
            ("likelihood", tuple(LIKELIHOODS)),
            ("method", METHODS),
            ("whitening", WHITENINGS),
        )
        for name, names in known:
            value = getattr(self, name)
            if value not in names:
                raise InputError(f"--{name} takes {', '.join(names)}, got {value!r}")
        if not 0 < self.test_fraction < 1:
            raise InputError(
                "--test-fraction lies between 0 and 1 (both excluded: without test "
                f"rows there is nothing to measure), got {self.test_fraction}"
            )
        if self.inputs is not None and self.target in self.inputs:
            raise InputError(
                f"the target {self.target!r} is among the inputs: leave it out there"
            )
        able = _ABLE.get(self.method)
        if able is not None and self.likelihood not in able:
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
