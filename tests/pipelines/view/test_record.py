"""The page says what the run holds, and warns of what is wrong."""

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import one_cloud
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.formats.citation import METHOD
from pipelines.maps.opening import open_answers
from pipelines.view.embedding import rendered
from pipelines.view.numbers import by, percent, significant
from pipelines.view.page import TEMPLATES, WORDS, write_view
from pipelines.view.record import read_record


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


@pytest.fixture(scope="package", autouse=True)
def coarse():
    """Pictures that nobody looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.view.record._DPI", 30)
        yield


@pytest.fixture(scope="module")
def record(positive_run):
    """Of a small run with a positive density."""
    return read_record(positive_run.path)


@pytest.fixture(scope="module")
def html(page_path):
    """Its page."""
    return page_path.read_text(encoding="utf-8")


def read(run, name="record", band="A_V"):
    """A part of the page of a run, and its text with single spaces."""
    page = rendered(TEMPLATES, f"{name}.html", run=run, band=band, **WORDS)
    return page, spaced(page)


def spaced(page):
    return re.sub(r"[ \n]+", " ", Page(page).text)


def changed(run, **changes):
    """The same run with other facts in its summary or provenance."""
    facts = {name: {**getattr(run, name), **changes[name]} for name in changes}
    return dataclasses.replace(run, **facts)


def test_the_page_is_whole_and_needs_no_other_file(html):
    page = Page(html)
    assert not page.open
    for address in page.addresses:
        assert address.startswith(("data:", "#")), address[:80]
    for anchor in [a[1:] for a in page.addresses if a.startswith("#")]:
        assert anchor in page.anchors
    assert page.tags.count("section") == 9
    (alt,) = page.alts
    assert len(alt) > 100


def test_the_page_says_the_figures_of_the_run(html, record):
    text, judged = spaced(html), record.judged
    assert judged is not None
    assert f"{significant(judged.rmse)} mag" in text
    for level in judged.coverage:
        assert f"{level.level:.0%} {percent(level.held, level.error)}" in text
    assert f"fitted {record.summary['counts']['fitted']:,}" in text
    assert f"{by(record.plan['lengthscale'], 3)} pc" in text
    assert record.provenance["inputs"][0]["sha256"] in text
    for message in record.summary["messages"]:
        assert message in text
    assert METHOD["title"] in text
    assert "[prior]" in text


def test_what_did_not_converge_is_loud(record):
    wrong = changed(record, summary={"converged": False})
    page, text = read(wrong, "verdict")
    assert 'class="warning" role="alert"' in page
    assert "the fit did not converge" in text and "did not converge, though" in text


def test_all_faults_of_a_fit_are_told(record):
    learning = {"converged": False, "status": "out of time"}
    wrong = changed(
        record,
        summary={
            "converged": True,
            "learning": learning,
            "dropped_modes": 3,
            "messages": ["mean: converged", "something moved"],
            "warnings": ["something moved"],
        },
    )
    _, told = read(wrong, "verdict")
    parts = ("The fit converged, with the prior's scales as far", "(out of time)")
    for part in (*parts, "3 modes", "something moved"):
        assert part in told
    assert "mean: converged" not in told
    # What is a warning is not a message, too.
    _, told = read(wrong)
    assert "mean: converged" in told and "something moved" not in told


def test_without_held_out_stars_the_page_says_that_nothing_was_judged(record):
    for part in ("verdict", "record"):
        _, text = read(dataclasses.replace(record, held_out=None), part)
        assert text.count("Nothing shows how well the map predicts") == 1
        assert text.count("data.holdout") == 1


def test_a_map_without_samples_is_judged_by_its_errors_alone(record):
    stars = record.held_out
    blind = {n: np.full(len(stars), np.nan) for n in stars.predicted}
    blind["mean"] = stars.predicted["mean"]
    stars = dataclasses.replace(stars, predicted=blind)
    run = dataclasses.replace(record, held_out=stars)
    assert run.judged.coverage == ()
    page, text = read(run)
    assert f"{significant(run.judged.rmse)} mag" in text
    assert "interval" not in text.split("Errors of coverages")[1].split("mapped")[0]
    assert page.count("<img") == 0


def test_every_text_is_escaped(record):
    nasty = "<script>alert('x')</script> & \"quoted\""
    wrong = changed(
        record,
        summary={"messages": [f"mean: {nasty}"], "counts": {"fitted": 1, nasty: 2}},
        provenance={"machine": nasty},
    )
    for part, count in (("record", 2), ("origin", 3)):
        page, text = read(wrong, part)
        assert "<script>alert" not in page
        assert text.replace("\\", "").count(nasty) == count


def test_numbers_keep_their_digits():
    assert significant(0.08) == "0.0800"
    assert significant(1041.2) == "1,041"
    assert significant(-2.5e-7, 2) == "−2.5e−07"
    assert significant(float("nan")) == "nan"
    assert by((50.0, 50.0, 50.0)) == "50"
    assert by((4200.0, 40.0)) == "4200 × 40"


def test_a_file_is_replaced_only_if_told(tmp_path, command, even):
    path = tmp_path / "map.html"
    path.write_text("mine")
    refused = command(f"view {even} -o {path}")
    assert refused.exit_code == 2 and "--overwrite" in refused.output
    assert path.read_text() == "mine"
    assert command(f"view {even} -o {path} --overwrite").exit_code == 0
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_a_missing_package_is_named_before_the_work(tmp_path, monkeypatch, even):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"dustmap\[view\]"):
        write_view(open_answers(even), tmp_path / "map.html")


def test_interruptions_are_told(record):
    once = {"checkpoint": "000007", "stage": "inference"}
    _, text = read(changed(record, provenance={"resumed": [once, once]}))
    assert "interrupted and resumed 2 times." in text
    assert "checkpoint 000007, stage inference" in text
    _, text = read(dataclasses.replace(record, metrics=[]))
    assert "never interrupted" in text and "Iterations by part" not in text


def test_a_band_and_distance_errors_that_are_not_known_are_told(record):
    exact = dataclasses.replace(record, exact_distances=True)
    for run, told in ((record, record.exact_distances), (exact, True)):
        _, text = read(run, "verdict", band="")
        assert "The band of the extinction" in text
        assert ("no distance errors" in text) == told
    assert "The band of the extinction" not in read(record, "verdict")[1]


def test_every_table_of_a_fit_is_told(record):
    """Of surveys, of a spectrum, of a prior with a bend, and of the catalogue."""
    survey = dict.fromkeys(("factor", "common", "growth", "degrees"), 0.5)
    survey |= {"name": "first", "rows": 1200, "overlap": 0.25, "slope": 1.0}
    survey |= {"slope_error": 0.0, "zero": -0.1, "zero_error": 0.01}
    band = {"longest": 800.0, "shortest": 400.0, "ratio": 1.5, "error": 0.1}
    ingested = {"rows_read": 12345, "rows_kept": 1000, "negative_extinctions": 7}
    ingested |= {"faults": {"no distance": 3}, "cuts": {}, "notes": ["a remark"]}
    run = changed(
        record,
        summary={
            "surveys": [survey],
            "spectrum": [{**band, "determined": 12.6}],
            "learning": {"errors": {"variance": 0.5, "lengthscale": 2.0}},
        },
        provenance={"catalogue": {"report": ingested}},
    )
    plan = {**run.plan, "bend": [0.0, math.log(2)]}
    text = read(dataclasses.replace(run, plan=plan))[1] + read(run, "origin")[1]
    assert "first 1,200 25.0% −0.100 ± 0.010 1, fixed 0.50" in text
    assert "800 to 400 pc 1.50 ± 0.10 13" in text
    assert "of the logarithm 25.0%" in text and "pc unconstrained" in text
    assert "power at octaves below, times 1, 2 not estimated" in text
    assert "rows read 12,345" in text and "fault: no distance 3" in text
    assert "note a remark" in text


def test_a_gaussian_density_is_judged_by_a_normal(cloud_run):
    run = read_record(cloud_run.path)
    _, text = read(run)
    assert "a Gaussian density, which may be negative" in text
    assert "the prediction as normal" in text
    assert "mean density" in text
    assert run.judged.coverage[1].held == run.summary["held_out"]["coverage_68"]


@pytest.mark.slow
def test_the_published_engine_has_a_record(svi_run):
    _, text = read(read_record(svi_run.path))
    assert "The engine svi" in text and "svi bound" in text


@pytest.mark.slow
def test_a_fit_without_samples_or_held_out_stars_warns_of_both(tmp_path):
    plain = one_cloud.settings(samples=0)
    plain["data"] = {"holdout": 0.0}
    write_stars(tmp_path / "stars.parquet", one_cloud.catalogue(150), overwrite=False)
    fit(tmp_path / "stars.parquet", tmp_path / "run", FitConfig.model_validate(plain))
    _, text = read(read_record(tmp_path / "run"), "verdict")
    assert "no posterior samples: it states no uncertainty" in text
    assert "none of its stars were held out" in text
