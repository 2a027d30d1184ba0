"""One report of a small run: its text is read, and a browser opens it."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def report_page(positive_run, command, shared) -> Path:
    """Made by the command line, with coarse pictures."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipelines.report.data._DPI", 40)
            path = folder / "report.html"
            done = command(f"report {positive_run.path} -o {path} --nside 4")
        assert done.exit_code == 0, done.output

    return shared("page", make) / "report.html"
