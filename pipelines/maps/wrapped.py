"""A map around another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from pipelines.maps.answers import Answers


def of_own(name: str) -> Any:
    """Return a property that is the attribute, or the bound method, of ``own``."""
    return property(attrgetter(f"own.{name}"))


@dataclass(frozen=True, kw_only=True, repr=False)
class Wrapped(Answers):
    """A map that answers as the map ``own``, except where a subclass changes this.

    A subclass defines moments, samples, `crossings` and `sky_maps`.
    """

    own: Answers

    changes = of_own("changes")
    factor = of_own("factor")
    box = of_own("box")
    extent = of_own("extent")
    facts = of_own("facts")
    fit = of_own("fit")
    has_samples = of_own("has_samples")
    kinds = of_own("kinds")
    default_kinds = of_own("default_kinds")
    origins = of_own("origins")
    support = of_own("support")
    last_star = of_own("last_star")
    reach = of_own("reach")
    cube = of_own("cube")
    columns = of_own("columns")
    lines = of_own("lines")

    def _estimated(self, estimate: str) -> Answers:
        return replace(self, own=self.own.estimated(estimate), estimate=estimate)
