"""Every notebook runs from top to bottom, in a folder of its own."""

import io
from pathlib import Path

import jupytext
import nbclient
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


def execute(path, folder):
    notebook = jupytext.read(io.StringIO(path.read_text()), fmt="py:percent")
    client = nbclient.NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
    )
    client.execute()
    return notebook


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """One thread, no screen, temporary files that pytest clears away."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # The kernel's own caches stay out of the home folder.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    return tmp_path


def test_there_are_notebooks():
    assert NOTEBOOKS


# jupyter_client's process and sockets outlive the fixture by a moment.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path, alone):
    notebook = execute(path, alone)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    figures = [
        out
        for cell in cells
        for out in cell.outputs
        if "image/png" in out.get("data", {})
    ]
    assert figures


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    notebook = jupytext.read(io.StringIO(path.read_text()), fmt="py:percent")
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert not list(FOLDER.glob("*.ipynb"))
