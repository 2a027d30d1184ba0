"""A citation names software, method, catalogues and band, in two formats that parse."""

import re
from pathlib import Path

import pytest
import yaml

from pipelines.bands import conversion, converted
from pipelines.catalog.presets import list_presets, load_preset
from pipelines.errors import InputError
from pipelines.export.citation import (
    METHOD,
    SOFTWARE,
    citation_block,
    to_bibtex,
    to_cff,
    write_citation,
)

ROOT = Path(__file__).resolve().parents[3]
TOLD = ("name", "title", "reference", "doi", "band")
# What version 1.2.0 of the format asks for and allows of that which is written here.
REQUIRED = {"cff-version", "message", "title", "authors"}
DOI = re.compile(r"10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+")


def block_of(*names):
    presets = [load_preset(name).model_dump() for name in names]
    catalogues = [{key: preset[key] for key in TOLD} for preset in presets]
    return citation_block(catalogues, "A_V", [{"name": "stars", "sha256": "ab"}])


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
    assert {load_preset(n).doi for n in list_presets()} - {""} <= found


def test_a_catalogue_of_several_papers_cites_each():
    content = yaml.safe_load(to_cff(block_of("stars-av")))
    _, first, second, third = content["references"]
    assert first["authors"] == [{"family-names": "Miglio"}, {"name": "et al."}]
    assert (first["year"], first["notes"]) == (2021, "A&A 645, A85")
    assert first["doi"] == "10.1051/0004-6361/202038307"
    assert (second["year"], third["year"]) == (2017, 2022)
    assert "doi" not in second and "doi" not in third


def test_two_authors_are_two():
    content = yaml.safe_load(to_cff(block_of("hunt2023")))
    assert content["references"][1]["authors"] == [
        {"family-names": "Hunt"},
        {"family-names": "Reffert"},
    ]


def test_bibtex_has_one_entry_each_with_keys_that_differ():
    text = to_bibtex(block_of("hunt2023", "hunt2023-cds", "starhorse-edr3"))
    keys = re.findall(r"^@\w+\{(\S+),$", text, re.MULTILINE)
    assert keys == ["dustmap", "wu2021", "hunt2023", "hunt2023b", "anders2022"]
    assert "author = {Hunt and Reffert}" in text
    assert "author = {Anders and others}" in text
    assert r"A\&A 673, A114" in text and "doi = {10.1051/0004-6361/202142369}" in text
    assert text.count("{") == text.count("}")
    # Their titles are the catalogues', not those of the papers.
    assert "@article" not in text and text.count("@misc") == 3


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
    block["catalogues"][0] |= {"title": 'A: "b" # é', "reference": "Maíz: 1", "doi": ""}
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
