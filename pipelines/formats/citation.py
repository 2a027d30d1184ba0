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


def _person(name: str) -> dict[str, str]:
    if name == OTHERS:
        return {"name": "et al."}
    family, _, given = name.partition(", ")
    return {"family-names": family, **({"given-names": given} if given else {})}


SOFTWARE = {
    "name": "dustmap",
    "title": "dustmap: three-dimensional maps of interstellar dust from catalogues of "
    "stars",
    "version": dustmap.__version__,
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
    software = block["software"]
    references = [*block["references"]]
    for work, paper in cited_papers(block):
        reference = _reference(work, paper)
        # A paper may stand for several catalogues.
        if reference not in references:
            references.append(reference)
    content = {
        "cff-version": "1.2.0",
        "message": block["message"],
        "title": software["title"],
        "type": "software",
        "version": software["version"],
        "license": software["license"],
        "authors": [{"name": name} for name in software["authors"]],
        "references": references,
    }
    # A plain copy, since YAML marks what stands in two places.
    plain = json.loads(json.dumps(content))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def to_bibtex(block: dict[str, Any]) -> str:
    """One entry each for the software, the method and every other work."""
    seen: Counter[str] = Counter()
    texts: list[str] = []
    written = []
    for entry in _entries(block):
        if entry in written:
            continue
        written.append(entry)
        kind, key, fields = entry
        # Other works with the same key get a letter: b, c, ...
        letter = chr(ord("a") + seen[key]) if seen[key] else ""
        seen[key] += 1
        lines = [
            f"  {name} = {{{text if name == 'doi' else _SPECIAL.sub(_ESCAPED, text)}}},"
            for name, text in fields.items()
            if text
        ]
        texts.append("\n".join([f"@{kind}{{{key}{letter},", *lines, "}", ""]))
    return "\n".join(texts)


def _entries(block: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Kind, key and fields of each entry; a paper may come several times."""
    software = block["software"]
    yield (
        "software",
        "dustmap",
        {
            "author": " and ".join(f"{{{name}}}" for name in software["authors"]),
            "title": f"{{{software['title']}}}",
            "version": software["version"],
        },
    )
    for work in block["references"]:
        names = [f"{a['family-names']}, {a['given-names']}" for a in work["authors"]]
        fields = {
            "author": " and ".join(names),
            "title": f"{{{work['title']}}}",
            "booktitle": work["collection-title"],
            "year": str(work["year"]),
        }
        yield "inproceedings", _key(names[0].split(",")[0], work["year"]), fields
    for work, paper in cited_papers(block):
        # A paper without authors is known by the catalogue it is of.
        title = paper.title if paper.authors else work["title"]
        who = paper.surnames[0] if paper.authors else work.get("name", "map")
        told = {name: str(getattr(paper, name) or "") for name in _FIELDS}
        fields = {
            "author": " and ".join(paper.authors),
            "title": f"{{{title}}}" if title else "",
            **told,
        }
        yield "article" if paper.journal else "misc", _key(who, told["year"]), fields


def _reference(work: dict[str, Any], paper: Reference) -> dict[str, Any]:
    """The format wants a title: that of a paper we have none of is its citation."""
    title = paper.title or (str(paper) if paper.authors else work["title"])
    authors = [_person(name) for name in paper.authors]
    told = {
        "year": paper.year,
        "journal": paper.journal,
        "volume": paper.volume,
        "start": paper.pages,
        "doi": paper.doi,
        "notes": paper.note,
    }
    return {
        "type": "article" if paper.authors else "data",
        "title": title,
        "authors": authors or [{"name": "not stated"}],
        **{key: value for key, value in told.items() if value},
    }


def _key(name: str, year: object) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())[:20] + str(year)
