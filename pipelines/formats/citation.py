"""Whom to cite for a map: as part of its provenance, as CITATION.cff and as BibTeX.

The block in the provenance of every product (an attribute of the zarr group, HISTORY
and cards of a FITS file):

====================  =================================================================
``message``           one sentence for people
``software``          name, title, version, license, authors
``references``        papers of the method, as CITATION.cff has them
``catalogues``        name, title and band of each, and its ``references``
``extinction_curve``  title and ``references``, where a band was converted
``band``              of the extinction
``inputs``            name and SHA-256 of the tables that were fitted
====================  =================================================================

The ``references`` of a catalogue or curve are papers: authors, year, title, journal,
volume, pages, doi, note, each only where it is known.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.references import OTHERS, Reference, references_of
from pipelines.storage.atomic import atomic_file

_ET_AL, _UNSTATED = "et al.", "not stated"


def _person(name: str) -> dict[str, str]:
    if name == OTHERS:
        return {"name": _ET_AL}
    family, _, given = name.partition(", ")
    return {"family-names": family, **({"given-names": given} if given else {})}


SOFTWARE = {
    "name": "dustmap",
    "title": "dustmap: three-dimensional maps of interstellar dust from catalogues of "
    "stars",
    "version": dustmap.__version__,
    "year": 2026,
    "license": "BSD-3-Clause",
    "authors": ["The dustmap developers"],
}
_AUTHORS = (
    "Wu, Luhuan; Miller, Andrew; Anderson, Lauren; Pleiss, Geoff; Blei, David; "
    "Cunningham, John"
)
METHOD = {
    "type": "conference-paper",
    "title": "Hierarchical Inducing Point Gaussian Process for Inter-domain "
    "Observations",
    "authors": [_person(name) for name in _AUTHORS.split("; ")],
    "collection-title": "Proceedings of the 24th International Conference on "
    "Artificial Intelligence and Statistics",
    "conference": {"name": "AISTATS 2021"},
    "year": 2021,
}
_MESSAGE = (
    "If you use this map, please cite the software, the method's paper and the "
    "catalogues that it was made from."
)
_FIELDS = ("journal", "volume", "pages", "year", "doi", "note")
# Names of fields in CITATION.cff, and of types in BibTeX, where they differ.
_CFF = {"pages": "start", "note": "notes"}
_KINDS = {"software": "software", "conference-paper": "inproceedings"}
# Characters of LaTeX's own.
_SPECIAL, _ESCAPED = re.compile(r"([&%#_$])"), r"\\\1"


def citation_block(
    catalogues: list[dict[str, Any]], band: str, inputs: list[dict[str, str]]
) -> dict[str, Any]:
    """The block of a map that was made from these catalogues."""
    return {
        "message": _MESSAGE,
        "software": SOFTWARE,
        "references": [METHOD],
        "catalogues": catalogues,
        "extinction_curve": [],
        "band": band,
        "inputs": inputs,
    }


def cited_papers(block: dict[str, Any]) -> list[tuple[dict[str, Any], Reference]]:
    """Every catalogue and curve of a block with each of its papers."""
    works = [*block.get("catalogues", []), *block.get("extinction_curve", [])]
    return [(work, paper) for work in works for paper in references_of(work)]


def write_citation(
    path: str | os.PathLike[str], block: dict[str, Any], *, overwrite: bool = False
) -> None:
    """Write the block as CITATION.cff or BibTeX, by the ending of the name.

    Raises
    ------
    InputError
        If the name ends otherwise, or the file exists and ``overwrite`` is false.
    """
    formats = {".cff": to_cff, ".bib": to_bibtex}
    target = Path(path)
    if target.suffix not in formats:
        raise InputError(f"{path}: expected a name that ends in {' or '.join(formats)}")
    with atomic_file(target, overwrite=overwrite) as temporary:
        temporary.write_text(formats[target.suffix](block), encoding="utf-8")


def to_cff(block: dict[str, Any]) -> str:
    """Citation File Format 1.2.0: the software, with all else as its references."""
    software, *works = _works(block)
    references = [reference for reference, _, _ in works]
    # Of the work itself the format has a date, of references a year.
    own = {name: said for name, said in software[0].items() if name != "year"}
    content = {
        "cff-version": "1.2.0",
        "message": block["message"],
        **own,
        # A paper may stand for several catalogues.
        "references": [r for i, r in enumerate(references) if r not in references[:i]],
    }
    # A plain copy, since YAML marks what stands in two places.
    plain = json.loads(json.dumps(content))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def to_bibtex(block: dict[str, Any]) -> str:
    """One entry each for the software, the method and every other work."""
    entries = [_entry(*work) for work in _works(block)]
    seen: Counter[str] = Counter()
    texts = []
    for kind, key, lines in (e for i, e in enumerate(entries) if e not in entries[:i]):
        # Other works with the same key get a letter: b, c, ...
        letter = chr(ord("a") + seen[key]) if seen[key] else ""
        seen[key] += 1
        texts.append("\n".join([f"@{kind}{{{key}{letter},", *lines, "}", ""]))
    return "\n".join(texts)


def _works(block: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Every work as CITATION.cff has it, its key in BibTeX, and its own title."""
    software = block["software"]
    reference = {
        "title": software["title"],
        "type": "software",
        "version": software["version"],
        **({"year": software["year"]} if "year" in software else {}),
        "license": software["license"],
        "authors": [{"name": name} for name in software["authors"]],
    }
    yield reference, "dustmap", software["title"]
    for work in block["references"]:
        key = _key(work["authors"][0]["family-names"], work["year"])
        yield work, key, work["title"]
    for work, paper in cited_papers(block):
        told = {name: getattr(paper, name) for name in ("year", *_FIELDS)}
        reference = {_CFF.get(name, name): said for name, said in told.items() if said}
        if paper.authors:
            who, kind, title = paper.surnames[0], "article", paper.title
            authors = [_person(name) for name in paper.authors]
        else:
            # It is known by the catalogue it is of.
            who, kind, title = work.get("name", "map"), "data", work["title"]
            authors = [{"name": _UNSTATED}]
        # The format wants a title: that of a paper we have none of is its citation.
        about = {"type": kind, "title": title or str(paper), "authors": authors}
        yield {**about, **reference}, _key(who, paper.year or ""), title


def _entry(
    reference: dict[str, Any], key: str, title: str
) -> tuple[str, str, list[str]]:
    """Kind, key and lines of a work in BibTeX."""
    kind = _KINDS.get(reference["type"]) or (
        "article" if "journal" in reference else "misc"
    )
    fields = {
        "author": " and ".join(filter(None, map(_author, reference["authors"]))),
        "title": f"{{{title}}}" if title else "",
        "version": reference.get("version"),
        "booktitle": reference.get("collection-title"),
        **{name: reference.get(_CFF.get(name, name)) for name in _FIELDS},
    }
    lines = []
    for name, said in fields.items():
        if said:
            text = said if name == "doi" else _SPECIAL.sub(_ESCAPED, str(said))
            lines.append(f"  {name} = {{{text}}},")
    return kind, key, lines


def _author(person: dict[str, str]) -> str:
    names = {_ET_AL: "others", _UNSTATED: ""}
    if "name" in person:
        return names.get(person["name"], f"{{{person['name']}}}")
    return ", ".join(person.values())


def _key(name: str, year: object) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())[:20] + str(year)
