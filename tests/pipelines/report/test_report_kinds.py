"""Every kind of run has a report: Gaussian, by the engine svi, without samples."""

import one_cloud
import pytest

from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.report.data import gather
from pipelines.report.page import render, write_report


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Pictures that nobody looks at."""
    monkeypatch.setattr("pipelines.report.data._DPI", 30)


def page_of(run, folder):
    """The page of a run, without the 3-D view."""
    path = write_report(run, folder / "report.html", three_d=False, nside=1)
    return " ".join(path.read_text(encoding="utf-8").split())


def test_a_gaussian_density_is_judged_by_a_normal(cloud_run):
    material = gather(cloud_run.path, nside=1)
    page = " ".join(render(material, ["summary", "held-out"]).split())
    assert "a Gaussian density, which may be negative" in page
    assert "the prediction as normal" in page
    assert "mean density" in page
    assert (
        material.judged.coverage[1].held == cloud_run.summary["held_out"]["coverage_68"]
    )


@pytest.mark.slow
def test_the_published_engine_has_a_report(svi_run, tmp_path):
    page = page_of(svi_run.path, tmp_path)
    assert "The engine svi" in page
    assert "svi bound" in page


@pytest.mark.slow
def test_a_fit_without_samples_or_held_out_stars_warns_of_both(tmp_path):
    plain = one_cloud.settings(samples=0)
    plain["data"] = {"holdout": 0.0}
    write_stars(tmp_path / "stars.parquet", one_cloud.catalogue(150), overwrite=False)
    fit(tmp_path / "stars.parquet", tmp_path / "run", FitConfig.model_validate(plain))
    page = page_of(tmp_path / "run", tmp_path)
    assert "no posterior samples: it states no uncertainty" in page
    assert "none of its stars were held out" in page
