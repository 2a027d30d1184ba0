"""The page says what the run holds, warns of what is wrong, and needs nothing else."""

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipelines.base.errors import InputError
from pipelines.formats.citation import METHOD
from pipelines.report.data import gather
from pipelines.report.numbers import by, percent, significant
from pipelines.report.page import render, write_report
from pipelines.run.verdict import verdict


class Page(HTMLParser):
    """Tags, addresses and the text that a reader sees."""

    VOID = ("meta", "link", "img", "input", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.alts = [], [], [], []
        self.text, self.anchors = "", set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.addresses += [named[n] for n in ("src", "href") if n in named]
        if "id" in named:
            assert named["id"] not in self.anchors, "two elements of one id"
            self.anchors.add(named["id"])
        if tag == "img":
            self.alts.append(named["alt"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " "

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def material(positive_run):
    """All of a small run with a positive density."""
    return gather(positive_run.path, nside=4)


@pytest.fixture(scope="module")
def html(report_page):
    """Its page."""
    return report_page.read_text(encoding="utf-8")


@pytest.fixture
def empty_figures(monkeypatch):
    """Figures of maps without anything in them."""
    monkeypatch.setattr("pipelines.report.data.draw", lambda *_: Figure((1, 1)))


def read(data, *sections):
    """The page of some sections, and its text with single spaces."""
    page = render(data, sections)
    return page, spaced(page)


def spaced(page):
    return re.sub(r"[ \n]+", " ", Page(page).text)


def with_run(material, **changes):
    """The same run with other records."""
    records = {
        name: {**getattr(material.run, name), **changes[name]} for name in changes
    }
    return dataclasses.replace(
        material, run=dataclasses.replace(material.run, **records)
    )


def with_summary(material, **changes):
    """The same run with other facts."""
    return with_run(material, summary=changes)


def test_the_page_is_whole_and_needs_no_other_file(html):
    page = Page(html)
    assert not page.open
    for address in page.addresses:
        assert address.startswith(("data:", "#")), address[:80]
    for anchor in [a[1:] for a in page.addresses if a.startswith("#")]:
        assert anchor in page.anchors
    assert page.tags.count("section") == 9
    assert len(page.alts) == 6
    assert all(len(alt) > 20 for alt in page.alts)
    assert len(set(page.alts)) == len(page.alts)
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1


def test_the_page_says_the_figures_of_the_run(html, material):
    text = spaced(html)
    judged, run = material.judged, material.run
    assert judged is not None
    assert f"{significant(judged.rmse)} mag" in text
    for level in judged.coverage:
        assert f"{level.level:.0%} {percent(level.held, level.error)}" in text
    assert f"fitted {run.summary['counts']['fitted']:,}" in text
    assert f"{by(run.plan.lengthscale, 3)} pc" in text
    assert run.provenance["inputs"][0]["sha256"] in text
    for message in run.summary["messages"]:
        assert message in text
    assert METHOD["title"] in text
    assert "[prior]" in text


@pytest.mark.usefixtures("empty_figures")
def test_what_did_not_converge_is_loud_and_comes_first(material):
    wrong = with_summary(material, converged=False)
    page, text = read(wrong, "overview", "summary")
    assert page.index('class="warning" role="alert"') < page.index("This map is")
    assert "the fit did not converge" in text and "did not converge, though" in text


@pytest.mark.usefixtures("empty_figures")
def test_all_faults_of_a_fit_are_told(material):
    learning = {"converged": False, "status": "out of time"}
    wrong = with_summary(material, converged=True, learning=learning, dropped_modes=3)
    messages = ("mean: converged", "residual: the prior", "something moved")
    wrong = with_summary(wrong, messages=messages)
    _, said = read(wrong, "overview")
    parts = ("The fit converged, with the prior's scales as far", "(out of time)")
    for part in (*parts, "3 modes", "something moved"):
        assert part in said
    assert "mean: converged" not in said and "residual:" not in said
    # What is a warning is not a message, too.
    _, said = read(wrong, "summary")
    assert "mean: converged" in said and "something moved" not in said


@pytest.mark.usefixtures("empty_figures")
def test_without_held_out_stars_the_page_says_that_nothing_was_judged(material):
    none = dataclasses.replace(material, held_out=None)
    _, text = read(none, "overview", "held-out")
    assert text.count("Nothing shows how well the map predicts") == 2
    assert text.count("data.holdout") == 2


def test_a_map_without_samples_is_judged_by_its_errors_alone(material):
    stars = material.held_out
    blind = {n: np.full(len(stars), np.nan) for n in stars.predicted}
    blind["mean"] = stars.predicted["mean"]
    stars = dataclasses.replace(stars, predicted=blind)
    found = dataclasses.replace(material, held_out=stars)
    assert found.judged.coverage == ()
    page, text = read(found, "summary", "held-out")
    assert f"{significant(found.judged.rmse)} mag" in text
    assert "interval" not in text.split("Errors of coverages")[1]
    assert page.count("<img") == 0


GOOD = {
    "rmse": 0.1, "stars": 900.0, "coverage_68": 0.69, "coverage_95": 0.95,
    "rmse_kriging": 0.12, "excess": -3.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "converged", "grade", "word"),
    [
        ({}, True, "usable", "kriging 0.12,"),
        ({"rmse": 0.121, "excess": 0.4}, True, "usable", "0.121"),
        ({"rmse": 0.123, "excess": 5.0}, True, "usable", "kriging"),
        ({"rmse": 0.13, "excess": 1.0}, True, "usable", "kriging"),
        ({"rmse": 0.13, "excess": 5.0}, True, "with care", "kriging 0.12"),
        ({"rmse": 0.19, "excess": 5.0}, True, "not usable", "kriging 0.12"),
        ({}, False, "with care", "converge, though"),
        ({"coverage_95": 0.92}, False, "with care", "95% intervals contain only 92%"),
        ({"coverage_68": 0.16}, False, "not usable", "only 16%"),
        ({"coverage_68": 0.55}, True, "with care", "only 55%"),
        ({"coverage_68": 0.49}, True, "not usable", "only 49%"),
        ({"coverage_68": 0.64, "stars": 9e9}, True, "usable", "64%"),
        ({"coverage_68": 0.6, "stars": 100.0}, True, "usable", "60%"),
        ({"coverage_95": 0.927, "stars": 2e4}, True, "with care", "only 93%"),
        ({"coverage_95": 0.75}, True, "not usable", "only 75%"),
        ({"coverage_95": 0.999}, True, "with care", "contain 100%"),
        ({"z_median": 0.21}, True, "with care", "above"),
        ({"z_median": -1.1}, True, "not usable", "below"),
        ({"z_median": 0.19, "stars": 9e9}, True, "usable", "69%"),
        ({"stars": 29.0}, True, "with care", "only 29"),
        ({"rmse": math.nan}, True, "not usable", "not finite"),
    ],
)
def test_the_verdict_follows_from_held_out_stars(changes, converged, grade, word):
    found = verdict(converged, {**GOOD, **changes})
    assert found.grade == grade and word in found.reason and found.advice
    assert found.meets("care") is (grade != "not usable")
    assert found.meets("usable") is (grade == "usable")


def test_what_was_not_judged_is_to_be_used_with_care():
    bare = {key: value for key, value in GOOD.items() if "coverage" not in key}
    for judged in (verdict(True, {}), verdict(False, {}), verdict(True, bare)):
        assert judged.grade == "with care"


def test_every_text_is_escaped(material):
    nasty = "<script>alert('x')</script> & \"quoted\""
    wrong = with_run(
        material,
        summary={"messages": [f"mean: {nasty}"], "counts": {"fitted": 1, nasty: 2}},
        provenance={"inputs": [{"name": nasty, "sha256": nasty}]},
    )
    page, text = read(wrong, "summary", "origin")
    assert "<script>alert" not in page
    assert text.count(nasty) == 5


def test_numbers_keep_their_digits():
    assert significant(0.08) == "0.0800"
    assert significant(1041.2) == "1,041"
    assert significant(-2.5e-7, 2) == "−2.5e−07"
    assert significant(float("nan")) == "nan"
    assert by((50.0, 50.0, 50.0)) == "50"
    assert by((4200.0, 40.0)) == "4200 × 40"


@pytest.mark.usefixtures("empty_figures")
def test_a_file_is_replaced_only_if_told(tmp_path, command, monkeypatch, material):
    monkeypatch.setattr("pipelines.report.page.gather", lambda *a, **k: material)
    path = tmp_path / "report.html"
    path.write_text("mine")
    refused = command(f"report run -o {path} --no-3d")
    assert refused.exit_code == 2 and "--overwrite" in refused.output
    assert path.read_text() == "mine"
    assert command(f"report run -o {path} --no-3d --overwrite").exit_code == 0
    plain = path.read_text()
    assert plain.startswith("<!DOCTYPE html>")
    assert "plotly.js" not in plain and plain.count("<section") == 8


def test_a_missing_package_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"dustmap\[report\].*--no-3d"):
        write_report(tmp_path / "none", tmp_path / "report.html")


@pytest.mark.usefixtures("empty_figures")
def test_interruptions_are_told(material):
    once = {"checkpoint": "000007", "stage": "inference"}
    resumed = with_run(material, provenance={"resumed": [once, once]})
    _, text = read(resumed, "convergence")
    assert "interrupted and resumed 2 times." in text
    assert "checkpoint 000007, stage inference" in text
    _, text = read(dataclasses.replace(material, records=[]), "convergence")
    assert "never interrupted" in text and "Iterations by part" not in text


@pytest.mark.usefixtures("empty_figures")
def test_a_band_and_distance_errors_that_are_not_known_are_told(material):
    unnamed = dataclasses.replace(material, origin={"extinction_band": ""})
    _, text = read(unnamed, "overview")
    assert "The band of the extinction" in text
    assert ("no distance errors" in text) == unnamed.exact_distances
    named = dataclasses.replace(material, origin={"extinction_band": "A_V"})
    _, text = read(named, "overview")
    assert "The band of the extinction" not in text


def test_every_table_of_a_fit_is_told(material):
    """Of surveys, of a spectrum, of a prior with a bend, and of the catalogue."""
    survey = dict.fromkeys(("factor", "common", "growth", "degrees"), 0.5)
    survey |= {"name": "first", "rows": 1200, "overlap": 0.25, "slope": 1.0}
    survey |= {"slope_error": 0.0, "zero": -0.1, "zero_error": 0.01}
    band = {"longest": 800.0, "shortest": 400.0, "ratio": 1.5, "error": 0.1}
    ingested = {"rows_read": 12345, "rows_kept": 1000, "negative_extinctions": 7}
    ingested |= {"faults": {"no distance": 3}, "cuts": {}, "notes": ["a remark"]}
    changed = with_run(
        material,
        summary={
            "surveys": [survey],
            "spectrum": [{**band, "determined": 12.6}],
            "learning": {"errors": {"variance": 0.5, "lengthscale": 2.0}},
        },
        provenance={"catalogue": {"report": ingested}},
    )
    plan = dataclasses.replace(changed.run.plan, bend=(0.0, math.log(2)))
    run = dataclasses.replace(changed.run, plan=plan)
    changed = dataclasses.replace(changed, run=run)
    _, text = read(changed, "summary", "origin")
    assert "first 1,200 25.0% −0.100 ± 0.010 1, fixed 0.50" in text
    assert "800 to 400 pc 1.50 ± 0.10 13" in text
    assert "of the logarithm 25.0%" in text and "pc unconstrained" in text
    assert "power at octaves below, times 1, 2 not estimated" in text
    assert "rows read 12,345" in text and "fault: no distance 3" in text
    assert "note a remark" in text
