"""The citation of a map: a block of its provenance.

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

The ``references`` of a catalogue or curve are papers, one line each:
``A & B 2023, A&A 1, 2. The title. doi:10.1/2``.
"""

from __future__ import annotations

import json
import re
from typing import Any

import dustmap

SOFTWARE = {
    "name": "dustmap",
    "title": "dustmap: three-dimensional maps of interstellar dust from catalogues of "
    "stars",
    "version": dustmap.__version__,
    "year": 2026,
    "license": "BSD-3-Clause",
    "authors": ["The dustmap developers"],
}
PROGRAM = {"program": "dustmap", "version": dustmap.__version__}
"""The beginning of a provenance."""
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


def citation_block(
    catalogues: list[dict[str, Any]], band: str, inputs: list[dict[str, str]]
) -> dict[str, Any]:
    """Return the block of a map from its catalogues."""
    return {
        "message": "If you use this map, please cite the software, the method's paper "
        "and the catalogues that it was made from.",
        "software": SOFTWARE,
        "references": [METHOD],
        "catalogues": catalogues,
        "extinction_curve": [],
        "band": band,
        "inputs": inputs,
    }


def cited_papers(block: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return pairs of a catalogue or curve and one of its papers."""
    works = [*block.get("catalogues", []), *block.get("extinction_curve", [])]
    return [(work, paper) for work in works for paper in work["references"]]


def doi_of(paper: str) -> str:
    """Return the DOI in a reference; empty without one."""
    return next(iter(re.findall(r"10\.\d+(?:\.\d+)*/\S+", paper)), "")


def provenance_text(meta: dict[str, Any]) -> str:
    """Write provenance as JSON.

    Raises `ValueError` if it is not JSON.
    """
    try:
        return json.dumps(meta, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"provenance must be plain JSON: {error}") from error
