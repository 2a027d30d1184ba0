"""A citation names software, method, catalogues and band, in two formats that parse."""

import re
from pathlib import Path

import pytest
import yaml

from pipelines.bands import conversion
from pipelines.base.errors import InputError
from pipelines.catalog.presets import list_presets, load_preset
from pipelines.catalog.provenance import surveys
from pipelines.catalog.references import parse_references
from pipelines.formats.citation import (
    METHOD,
    SOFTWARE,
    citation_block,
    to_bibtex,
    to_cff,
    write_citation,
)
from pipelines.products.provenance import converted

ROOT = Path(__file__).resolve().parents[3]
# What version 1.2.0 of the format asks for and allows of that which is written here.
REQUIRED = {"cff-version", "message", "title", "authors"}
DOI = re.compile(r"10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+")


def block_of(*names):
    presets = [load_preset(name).model_dump(mode="json") for name in names]
    return block_from(*presets)


def block_from(*presets):
    catalogues = [one for preset in presets for one in surveys({"preset": preset})]
    return citation_block(catalogues, "A_V", [{"name": "stars", "sha256": "ab"}])


def entries_of(block):
    """BibTeX entries by key, each its fields."""
    entries = re.split(r"^@", to_bibtex(block), flags=re.MULTILINE)[1:]
    parsed = {}
    for entry in entries:
        key = re.match(r"\w+\{(\S+),", entry)[1]
        parsed[key] = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
    return parsed


def assert_valid(content):
    assert set(content) >= REQUIRED
    assert content["cff-version"] == "1.2.0" and content["type"] == "software"
    for work in [content, *content["references"]]:
        assert isinstance(work["title"], str) and work["title"]
        assert work["authors"]
        for author in work["authors"]:
            assert set(author) in (
                {"name"},
                {"family-names"},
                {"family-names", "given-names"},
            )
            assert all(isinstance(part, str) and part for part in author.values())
        assert isinstance(work.get("year", 2020), int)
        assert DOI.fullmatch(work.get("doi", "10.1000/x"))
    kinds = {work["type"] for work in content["references"]}
    assert kinds <= {"conference-paper", "article", "data"}


def test_the_package_is_cited_as_its_own_file_says():
    own = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for key in ("title", "version", "license"):
        assert SOFTWARE[key] == own[key]
    assert SOFTWARE["authors"] == [author["name"] for author in own["authors"]]
    assert own["references"][0] == METHOD


def test_the_file_is_valid_for_every_survey():
    content = yaml.safe_load(to_cff(block_of(*list_presets())))
    assert_valid(content)
    found = {work.get("doi") for work in content["references"]}
    presets = [load_preset(name) for name in list_presets()]
    assert {paper.doi for one in presets for paper in one.references} <= found


def test_a_catalogue_of_several_papers_cites_each_by_its_own_title():
    block = block_of("stars-av")
    content = yaml.safe_load(to_cff(block))
    _, first, second, third = content["references"]
    assert first["authors"] == [
        {"family-names": "Miglio", "given-names": "A."},
        {"name": "et al."},
    ]
    assert (first["year"], first["journal"], first["volume"]) == (2021, "A&A", "645")
    assert first["start"] == "A85" and first["type"] == "article"
    papers = {"miglio2021": first, "anders2017": second, "zinn2022": third}
    entries = entries_of(block)
    assert list(entries) == ["dustmap", "wu2021", *papers]
    titles = {paper["title"] for paper in papers.values()}
    assert len(titles) == 3 and load_preset("stars-av").title not in titles
    for key, paper in papers.items():
        assert entries[key]["title"] == f"{{{paper['title']}}}"
        assert entries[key]["doi"] == paper["doi"]
    assert entries["miglio2021"]["author"] == "Miglio, A. and others"
    assert entries["zinn2022"]["doi"] == "10.3847/1538-4357/ac2c83"


def test_a_line_of_an_older_preset_is_cited_without_titles_that_it_does_not_give():
    line = "Green & Rix 2019, ApJ 887, 93; Zinn et al. 2022, a letter"
    one = {"name": "mine", "title": "My stars", "reference": line, "doi": "10.1/x_y"}
    block = block_from({**one, "band": "A_V"})
    entries = entries_of(block)
    green, zinn = entries["green2019"], entries["zinn2022"]
    assert green == {
        "author": "Green and Rix",
        "journal": "ApJ",
        "volume": "887",
        "pages": "93",
        "year": "2019",
        "doi": "10.1/x_y",
    }
    assert zinn == {"author": "Zinn and others", "year": "2022", "note": "a letter"}
    content = yaml.safe_load(to_cff(block))
    # The format wants titles: these are nobody's.
    said = [work["title"] for work in content["references"][1:]]
    assert said == ["Green & Rix 2019, ApJ 887, 93", "Zinn et al. 2022, a letter"]
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


def test_bibtex_has_one_entry_for_each_paper_with_keys_that_differ():
    names = "hunt2023", "hunt2023-cds", "starhorse-edr3"
    other = {"name": "o", "title": "O", "reference": "Hunt 2023, AJ 1, 2", "band": ""}
    block = block_from(*(load_preset(name).model_dump() for name in names), other)
    entries = entries_of(block)
    keys = ["dustmap", "wu2021", "hunt2023", "anders2022", "hunt2023b"]
    assert list(entries) == keys
    assert entries["hunt2023"]["author"] == "Hunt, Emily L. and Reffert, Sabine"
    assert entries["hunt2023"]["journal"] == r"A\&A"
    text = to_bibtex(block)
    assert text.count("{") == text.count("}")
    assert len(yaml.safe_load(to_cff(block))["references"]) == 4


def test_a_converted_band_cites_its_curve():
    meta = {"citation": block_of("hunt2023")}
    changed = converted(meta, conversion("A_V", "A_G"))["citation"]
    assert changed["band"] == "A_G"
    content = yaml.safe_load(to_cff(changed))
    assert_valid(content)
    assert content["references"][2]["doi"] == "10.3847/1538-4357/accb59"
    # R_V alone needs no curve.
    assert not converted(meta, conversion("A_V", "E(B-V)"))["citation"][
        "extinction_curve"
    ]


def test_awkward_names_survive(tmp_path):
    block = block_of("hunt2023")
    block["catalogues"][0] |= {
        "title": 'A: "b" # é',
        "references": [{"note": "Maíz: 1"}],
    }
    write_citation(tmp_path / "CITATION.cff", block)
    content = yaml.safe_load((tmp_path / "CITATION.cff").read_text(encoding="utf-8"))
    assert content["references"][1]["title"] == 'A: "b" # é'
    assert content["references"][1]["authors"] == [{"name": "not stated"}]
    assert content["references"][1]["notes"] == "Maíz: 1"
    assert "@misc{hunt2023," in to_bibtex(block)
    assert_valid(content)


def test_a_citation_is_not_overwritten_and_has_a_known_ending(tmp_path):
    write_citation(tmp_path / "map.bib", block_of("mock"))
    assert (tmp_path / "map.bib").read_text().startswith("@software{dustmap,")
    with pytest.raises(InputError, match="exists"):
        write_citation(tmp_path / "map.bib", block_of("mock"))
    with pytest.raises(InputError, match=r"\.cff or \.bib"):
        write_citation(tmp_path / "map.txt", block_of("mock"))
