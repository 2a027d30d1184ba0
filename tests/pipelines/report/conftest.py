"""One report of a small run: its text is read, and a browser opens it."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def report_page(positive_run, command, tmp_path_factory) -> Path:
    """Made by the command line, with coarse pictures."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.report.data._DPI", 40)
        done = command(f"report {positive_run.path} -o {path} --nside 4")
    assert done.exit_code == 0, done.output
    return path
