"""The pages of the documentation say what is, and build without a warning."""

import ast
import doctest
import html
import importlib
import os
import pkgutil
import re
import subprocess
import sys

import pytest
from documents import (
    ROOT,
    blocks,
    commands,
    missing_files,
    missing_names,
    require_command,
    require_settings,
)

DOCS = ROOT / "scripts" / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = [words for text in TEXTS.values() for words in commands(text)]
EACH = pytest.mark.parametrize("name", TEXTS)


def build(folder, *modules):
    return subprocess.run(
        [DOCS / "build", folder, *modules],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHON": sys.executable},
    )


def submodules(name):
    package = importlib.import_module(name)
    below = pkgutil.walk_packages(package.__path__, f"{name}.")
    found = {module.name for module in below if "__main__" not in module.name}
    return {name, *found}


def words(page):
    """What is read on a page of HTML."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_in_a_table_of_contents():
    listed = re.findall(r"```\{toctree\}\n(.*?)```", TEXTS["index"], re.S)
    names = {line for part in listed for line in part.splitlines()}
    pages = {*TEXTS, "api", "changelog"} - {"index"}
    assert names >= pages


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_on_a_page_exists_with_its_options(words):
    require_command(words)


def test_the_pages_have_commands_and_settings():
    assert len(COMMANDS) > 15
    assert sum(require_settings(text) for text in TEXTS.values()) > 15


@EACH
def test_the_files_and_names_on_a_page_exist(name):
    assert missing_files(TEXTS[name]) == []
    assert missing_names(TEXTS[name]) == []


@EACH
def test_the_examples_of_a_page_run(name):
    for number, source in enumerate(blocks(TEXTS[name], "python")):
        ast.parse(source, filename=f"{name} {number}")
    if name == "reference":
        pytest.skip("its examples read files: tests/test_readme.py makes them")
    examples = "\n".join(blocks(TEXTS[name], "pycon"))
    parsed = doctest.DocTestParser().get_doctest(examples, {}, name, name, 0)
    assert doctest.DocTestRunner(verbose=False).run(parsed).failed == 0


def test_every_notebook_is_listed():
    files = {path.name for path in (ROOT / "notebooks").glob("*.py")}
    assert set(re.findall(r"^\| `(\w+\.py)`", TEXTS["notebooks"], re.M)) == files


@pytest.mark.slow
def test_a_part_of_the_api_builds_with_a_page_for_every_module(tmp_path):
    done = build(tmp_path, "dustmap.whitening")
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (tmp_path / "api").glob("*.html")}
    assert pages == submodules("dustmap.whitening")
    page = words(tmp_path / "api" / "dustmap.whitening.torus.html")
    assert "colour_transpose(field: Float[Tensor, '*b f'])" in page
    equations = (tmp_path / "mathematics.html").read_text()
    assert equations.count("<math") > 50
    assert not re.findall(r"src=.https?:", equations)


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    before = set(DOCS.rglob("*"))
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (tmp_path / "api").glob("*.html")}
    assert pages == submodules("dustmap") | submodules("pipelines")
    assert set(DOCS.rglob("*")) == before
