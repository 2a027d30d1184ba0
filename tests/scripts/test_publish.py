"""CITATION.cff of a published map: every work once, with a title and authors."""

import re
from datetime import date
from pathlib import Path

import pytest
import yaml

from pipelines.catalog.presets import list_presets, load_preset
from pipelines.catalog.provenance import surveys
from pipelines.formats.citation import citation_block

DOI = re.compile(r"10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+")
AUTHORS = ({"name"}, {"family-names"}, {"family-names", "given-names"})


@pytest.fixture
def cited(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from publish import citation

    about = {"title": "Map", "authors": ["Doe, Jane"], "version": "1.0", "doi": ""}
    about |= {"date": date(2026, 1, 2), "licence": "CC-BY-4.0"}

    def cited(*presets):
        catalogues = [one for each in presets for one in surveys({"preset": each})]
        text = citation(citation_block(catalogues, "A_V", []), about)
        return yaml.safe_load(text)["references"]

    return cited


def test_every_paper_of_every_survey_is_a_valid_reference(cited):
    presets = [load_preset(name) for name in list_presets()]
    references = cited(*(preset.model_dump(mode="json") for preset in presets))
    for work in references:
        assert isinstance(work["title"], str) and work["title"] and work["authors"]
        assert all(set(author) in AUTHORS for author in work["authors"])
        assert isinstance(work.get("year", 2020), int)
        assert DOI.fullmatch(work.get("doi", "10.1000/x"))
    kinds = {work["type"] for work in references}
    assert kinds == {"software", "conference-paper", "article", "data"}
    papers = {paper for preset in presets for paper in preset.references}
    assert papers <= {work["title"] for work in references}
    # Two presets of one catalogue have one paper.
    both = [load_preset(name).model_dump() for name in ("hunt2023", "hunt2023-cds")]
    assert len(cited(*both)) == 3


def test_works_without_authors_or_titles_have_those_that_the_format_requires(cited):
    papers = ["Green et al. 2019, ApJ 887, 93. doi:10.1000/x_y", "Maíz: 1"]
    *_, green, unknown = cited({"name": "a", "title": "A", "references": papers})
    assert (green["title"], green["year"]) == (papers[0], 2019)
    assert green["authors"] == [{"name": "Green et al."}]
    assert green["doi"] == "10.1000/x_y"
    assert (unknown["type"], unknown["title"]) == ("data", "Maíz: 1")
    assert unknown["authors"] == [{"name": "not stated"}]
