"""Which changes of the code make another fit, and which do not."""

import shutil
from pathlib import Path

import pytest

import dustmap
from pipelines.saving.identity import code_digests

SOURCES = Path(str(dustmap.__file__)).parent.parent


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the code, to be changed."""
    folder = tmp_path_factory.mktemp("code")
    for package in ("dustmap", "pipelines"):
        shutil.copytree(
            SOURCES / package,
            folder / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder


def changed_by(folder: Path, name: str) -> set[str]:
    """The modules that differ once a comment is added to this one."""
    before, path = code_digests(folder), folder / name
    text = path.read_text()
    path.write_text(text + "# changed\n")
    after = code_digests(folder)
    path.write_text(text)
    return {key for key in before | after if before.get(key) != after.get(key)}


@pytest.mark.parametrize(
    "name",
    [
        "dustmap/linalg/cg.py",
        "dustmap/kernels/__init__.py",
        "pipelines/model/engines.py",
        "pipelines/model/svi.py",
        "pipelines/planning/planner.py",
        "pipelines/planning/selection.py",
        "pipelines/catalog/schema.py",
        "pipelines/fit/fitting.py",
    ],
)
def test_a_change_of_what_the_inference_imports_is_noticed(copy, name):
    assert changed_by(copy, name) == {name}


@pytest.mark.parametrize(
    "room", ["cli", "compare", "export", "figures", "query", "regress", "report"]
)
def test_no_change_of_another_stage_is(room):
    assert list((SOURCES / "pipelines" / room).glob("*.py"))
    counted = code_digests(SOURCES)
    assert not [name for name in counted if name.startswith(f"pipelines/{room}/")]


def test_a_changed_figure_is_no_difference(copy):
    assert changed_by(copy, "pipelines/figures/style.py") == set()


def test_a_module_that_becomes_part_of_a_fit_is_noticed(copy):
    path = copy / "pipelines" / "planning" / "planner.py"
    text = path.read_text()
    before = set(code_digests(copy))
    path.write_text("import pipelines.verify.products\n" + text)
    assert "pipelines/verify/products.py" in set(code_digests(copy)) - before
    path.write_text(text)
