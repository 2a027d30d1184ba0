"""The citation in the provenance names software, method, catalogues and band."""

from pathlib import Path

import yaml

from pipelines.bands import conversion
from pipelines.catalog.presets import list_presets, load_preset
from pipelines.catalog.provenance import surveys
from pipelines.export.exporters import with_change
from pipelines.formats.citation import (
    METHOD,
    SOFTWARE,
    citation_block,
    cited_papers,
    doi_of,
)

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


def test_every_paper_of_a_survey_is_cited_with_its_doi():
    # A mock galaxy has a note and no paper.
    names = [name for name in list_presets() if name != "mock"]
    named = [paper for name in names for paper in load_preset(name).references]
    assert [paper for _, paper in cited_papers(block_of(*names))] == named
    assert all(map(doi_of, named))
    *_, third = (paper for _, paper in cited_papers(block_of("stars-av")))
    assert third.startswith("Zinn et al. 2022, ApJ 926, 191. The K2 ")
    assert doi_of(third) == "10.3847/1538-4357/ac2c83"


def test_a_converted_band_cites_its_curve():
    meta = {"citation": block_of("hunt2023")}
    changed = with_change(meta, conversion("A_V", "A_G"))["citation"]
    assert changed["band"] == "A_G"
    assert doi_of(cited_papers(changed)[1][1]) == "10.3847/1538-4357/accb59"
    # R_V alone needs no curve.
    changed = with_change(meta, conversion("A_V", "E(B-V)"))["citation"]
    assert not changed["extinction_curve"]
