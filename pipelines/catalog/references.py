"""Papers that a survey asks to be cited by: what is known of each, and no more."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pydantic

# The last of the authors, where there are more than are named.
OTHERS = "others"
_LISTED = 3
_REFERENCE = re.compile(r"(?P<who>[^\d]+?) (?P<year>\d{4}), (?P<where>.+)")
_WHERE = re.compile(r"(?P<journal>.+?) (?P<volume>\d+), (?P<pages>[A-Z]?\d+)")

Name = Annotated[str, pydantic.StringConstraints(min_length=1)]


class Reference(pydantic.BaseModel):
    """One paper; what is empty is not known, and never guessed.

    ``authors`` are ``"Surname, Given names"`` or the surname alone, the last is
    ``"others"`` where there are more; ``note`` is what else is said, or all that is.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    authors: list[Name] = []
    year: int | None = None
    title: str = ""
    journal: str = ""
    volume: str = ""
    pages: str = ""
    doi: str = ""
    note: str = ""

    @pydantic.model_validator(mode="after")
    def _identified(self) -> Reference:
        if not (self.authors and self.year) and not self.note:
            raise ValueError("a reference needs authors and year, or a note")
        return self

    @property
    def surnames(self) -> list[str]:
        """Of the authors that are named, and ``"others"``."""
        return [name.split(",")[0] for name in self.authors]

    def __str__(self) -> str:
        """As an article cites it: ``Miglio et al. 2021, A&A 645, A85``."""
        if not self.authors:
            return self.note
        *first, last = self.surnames
        if last == OTHERS or len(first) >= _LISTED:
            who = f"{first[0]} et al."
        else:
            who = f"{', '.join(first)} & {last}" if first else last
        where = f"{self.journal} {self.volume}".strip()
        said = (f"{who} {self.year}", where, self.pages, self.note)
        return ", ".join(filter(None, said))


def parse_references(text: str, doi: str = "") -> list[Reference]:
    """References from one line: ``A & B 2023, A&A 1, 2; C et al. 2020, ApJ 3, 4``.

    The DOI is that of the first. What is written otherwise is kept as a note. Titles
    of papers cannot be had from it.
    """
    texts = filter(None, text.split("; ")) if text else filter(None, [doi])
    return [_parsed(one, "" if number else doi) for number, one in enumerate(texts)]


def references_of(told: dict[str, Any]) -> list[Reference]:
    """Of a preset or another work as plain JSON: a list, or a line and one DOI."""
    if told.get("references"):
        return [Reference.model_validate(one) for one in told["references"]]
    return parse_references(told.get("reference", ""), told.get("doi", ""))


def plain(references: list[Reference]) -> list[dict[str, Any]]:
    """As JSON, without what is not known."""
    return [one.model_dump(mode="json", exclude_defaults=True) for one in references]


def _parsed(text: str, doi: str) -> Reference:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return Reference(note=text, doi=doi)
    who = found["who"].replace(" et al.", f" & {OTHERS}")
    where = _WHERE.fullmatch(found["where"])
    return Reference(
        authors=[name.strip() for name in re.split(r" & |, ", who)],
        year=int(found["year"]),
        doi=doi,
        **(where.groupdict() if where else {"note": found["where"]}),
    )
