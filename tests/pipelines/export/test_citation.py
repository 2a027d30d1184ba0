"""The citation in the provenance names software, method, catalogues and band."""

from pathlib import Path

import yaml

from pipelines.bands import conversion
from pipelines.catalog.presets import list_presets, load_preset, parse_references
from pipelines.catalog.provenance import surveys
from pipelines.formats.citation import (
    METHOD,
    SOFTWARE,
    citation_block,
    cited_papers,
)
from pipelines.maps.provenance import converted

ROOT = Path(__file__).resolve().parents[3]


def block_of(*names):
    presets = [load_preset(name).model_dump(mode="json") for name in names]
    return block_from(*presets)


def block_from(*presets):
    catalogues = [one for preset in presets for one in surveys({"preset": preset})]
    return citation_block(catalogues, "A_V", [{"name": "stars", "sha256": "ab"}])


def test_the_package_is_cited_as_its_own_file_says():
    own = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for key in ("title", "version", "license"):
        assert SOFTWARE[key] == own[key]
    assert SOFTWARE["authors"] == [author["name"] for author in own["authors"]]
    assert own["references"][0] == METHOD


def test_every_paper_of_a_survey_is_cited_with_its_own_title_and_doi():
    # A mock galaxy has a note and no paper.
    names = [name for name in list_presets() if name != "mock"]
    named = [paper for name in names for paper in load_preset(name).references]
    assert [paper for _, paper in cited_papers(block_of(*names))] == named
    assert all(paper.title and paper.doi for paper in named)
    first, second, third = (p for _, p in cited_papers(block_of("stars-av")))
    assert len({paper.title for paper in (first, second, third)}) == 3
    assert first.authors == ["Miglio, A.", "others"]
    assert (first.year, str(first)) == (2021, "Miglio et al. 2021, A&A 645, A85")
    assert third.doi == "10.3847/1538-4357/ac2c83"


def test_a_line_of_an_older_preset_is_cited_without_titles_that_it_does_not_give():
    line = "Green & Rix 2019, ApJ 887, 93; Zinn et al. 2022, a letter"
    one = {"name": "mine", "title": "My stars", "reference": line, "doi": "10.1/x_y"}
    block = block_from({**one, "band": "A_V"})
    (_, green), (_, zinn) = cited_papers(block)
    assert (green.authors, green.year, green.doi) == (
        ["Green", "Rix"],
        2019,
        "10.1/x_y",
    )
    assert (zinn.note, green.title, zinn.title, zinn.doi) == ("a letter", "", "", "")
    # What an earlier version kept of the survey of a table is read alike.
    earlier = surveys({"inputs": [{"surveys": [{**one, "band": "A_V"}]}]})
    assert earlier == block["catalogues"]


def test_references_are_told_as_articles_cite():
    told = {name: load_preset(name).cited for name in list_presets()}
    assert told["hunt2023"] == "Hunt & Reffert 2023, A&A 673, A114"
    assert told["zgr23"] == "Zhang, Green & Rix 2023, MNRAS 524, 1855"
    assert told["stars-av"].startswith("Miglio et al. 2021, A&A 645, A85; Anders et al")
    for name in set(told) - {"mock"}:
        for paper in told[name].split("; "):
            assert str(*parse_references(paper)) == paper


def test_a_converted_band_cites_its_curve():
    meta = {"citation": block_of("hunt2023")}
    changed = converted(meta, conversion("A_V", "A_G"))["citation"]
    assert changed["band"] == "A_G"
    assert cited_papers(changed)[1][1].doi == "10.3847/1538-4357/accb59"
    # R_V alone needs no curve.
    assert not converted(meta, conversion("A_V", "E(B-V)"))["citation"][
        "extinction_curve"
    ]
