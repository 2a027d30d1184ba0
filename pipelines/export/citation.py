"""Whom to cite for a map: as part of its provenance, as CITATION.cff and as BibTeX.

The block in the provenance of every product (an attribute of the zarr group, HISTORY
and cards of a FITS file):

====================  =================================================================
``message``           one sentence for people
``software``          name, title, version, license, authors
``references``        papers of the method, as CITATION.cff has them
``catalogues``        name, title, reference, doi and band of each
``extinction_curve``  title, reference, doi, where a band was converted
``band``              of the extinction
``inputs``            name and SHA-256 of the tables that were fitted
====================  =================================================================
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import dustmap
from pipelines.errors import InputError
from pipelines.store import atomic_file

SOFTWARE = {
    "name": "dustmap",
    "title": "dustmap: three-dimensional maps of interstellar dust from catalogues of "
    "stars",
    "version": dustmap.__version__,
    "license": "BSD-3-Clause",
    "authors": ["The dustmap developers"],
}
METHOD = {
    "type": "conference-paper",
    "title": "Hierarchical Inducing Point Gaussian Process for Inter-domain "
    "Observations",
    "authors": [
        {"family-names": "Wu", "given-names": "Luhuan"},
        {"family-names": "Miller", "given-names": "Andrew"},
        {"family-names": "Anderson", "given-names": "Lauren"},
        {"family-names": "Pleiss", "given-names": "Geoff"},
        {"family-names": "Blei", "given-names": "David"},
        {"family-names": "Cunningham", "given-names": "John"},
    ],
    "collection-title": "Proceedings of the 24th International Conference on "
    "Artificial Intelligence and Statistics",
    "conference": {"name": "AISTATS 2021"},
    "year": 2021,
}
_MESSAGE = (
    "If you use this map, please cite the software, the method's paper and the "
    "catalogues that it was made from."
)
_REFERENCE = re.compile(r"(?P<who>[^\d]+?) (?P<year>\d{4}), (?P<where>.+)")
_UNSTATED = "not stated"
SUFFIXES = (".cff", ".bib")


def citation_block(
    catalogues: list[dict[str, str]], band: str, inputs: list[dict[str, str]]
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


def write_citation(
    path: str | os.PathLike[str], block: dict[str, Any], *, overwrite: bool = False
) -> None:
    """Write the block as CITATION.cff or BibTeX, by the ending of the name.

    Raises
    ------
    InputError
        If the name ends otherwise, or the file exists and ``overwrite`` is false.
    """
    target = Path(path)
    check_suffix(target)
    text = to_cff(block) if target.suffix == ".cff" else to_bibtex(block)
    with atomic_file(target, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_suffix(path: Path) -> None:
    """Raise an `InputError` if a citation cannot be written under this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path}: a citation is written as CITATION.cff or BibTeX, expected a name "
            f"that ends in {' or '.join(SUFFIXES)}"
        )


def to_cff(block: dict[str, Any]) -> str:
    """Citation File Format 1.2.0: the software, with all else as its references."""
    software = block["software"]
    references = [*block["references"], *map(_as_reference, _works(block))]
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
    return "\n".join(_yaml(content)) + "\n"


def to_bibtex(block: dict[str, Any]) -> str:
    """One entry each for the software, the method and every other work."""
    software = block["software"]
    entries = [
        _entry(
            "software",
            "dustmap",
            author=" and ".join(f"{{{name}}}" for name in software["authors"]),
            title=f"{{{software['title']}}}",
            version=software["version"],
        )
    ]
    for work in block["references"]:
        names = [f"{a['family-names']}, {a['given-names']}" for a in work["authors"]]
        entries.append(
            _entry(
                "inproceedings",
                _key(names[0].split(",")[0], work["year"]),
                author=" and ".join(names),
                title=f"{{{work['title']}}}",
                booktitle=work["collection-title"],
                year=str(work["year"]),
            )
        )
    for work in _works(block):
        who, year, where = _parsed(work["reference"])
        entries.append(
            _entry(
                "misc" if "name" in work else "article",
                _key(who[0] if year else work.get("name", "map"), year),
                author=" and ".join("others" if n == "et al." else n for n in who),
                title=f"{{{work['title']}}}",
                year=year,
                note=where,
                doi=work["doi"],
            )
        )
    return "\n".join(_distinct(entries))


def _works(block: dict[str, Any]) -> list[dict[str, str]]:
    """Catalogues and curves, one entry for every paper; a DOI is that of the first.

    A catalogue has a ``name`` and a title of its own, not its paper's.
    """
    works = []
    for work in [*block["catalogues"], *block["extinction_curve"]]:
        papers = work["reference"].split("; ")
        works += [
            {**work, "reference": paper, "doi": work["doi"] if not number else ""}
            for number, paper in enumerate(papers)
        ]
    return works


def _parsed(reference: str) -> tuple[list[str], str, str]:
    """Surnames, year and journal of ``A & B 2023, A&A 1, 2``, ``C et al. 2020, …``.

    What is written otherwise has no year, and the whole of it for a journal.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        return [_UNSTATED], "", reference
    who = found["who"].replace(" et al.", " & et al.")
    names = [name.strip() for name in re.split(r" & |, ", who)]
    return names, found["year"], found["where"]


def _as_reference(work: dict[str, str]) -> dict[str, Any]:
    who, year, where = _parsed(work["reference"])
    authors = [
        {"name": name} if name in ("et al.", _UNSTATED) else {"family-names": name}
        for name in who
    ]
    reference: dict[str, Any] = {
        "type": "data" if "name" in work else "article",
        "title": work["title"],
        "authors": authors,
    }
    if year:
        reference["year"] = int(year)
    if where:
        reference["notes"] = where
    if work["doi"]:
        reference["doi"] = work["doi"]
    return reference


def _entry(kind: str, key: str, **fields: str) -> str:
    lines = [f"  {name} = {{{text}}}," for name, text in fields.items() if text]
    body = [line.replace("&", r"\&") for line in lines]
    return "\n".join([f"@{kind}{{{key},", *body, "}", ""])


def _key(name: str, year: object) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())[:20] + str(year)


def _distinct(entries: list[str]) -> list[str]:
    """Without repetitions; of other works with one key each gets a letter."""
    seen: dict[str, int] = {}
    kept = []
    for entry in dict.fromkeys(entries):
        key = entry.split("{", 1)[1].split(",", 1)[0]
        seen[key] = seen.get(key, 0) + 1
        letter = "" if seen[key] == 1 else chr(ord("a") + seen[key] - 1)
        kept.append(entry.replace(key + ",", key + letter + ",", 1))
    return kept


def _yaml(value: Any, indent: str = "") -> list[str]:
    """Block style with JSON's scalars, which are YAML's too."""
    lines = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_yaml(item, indent + "  ")]
        elif isinstance(item, list):
            lines.append(f"{indent}{key}:" if item else f"{indent}{key}: []")
            for one in item:
                first, *rest = _yaml(one, indent + "    ")
                lines += [f"{indent}  - {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}")
    return lines
