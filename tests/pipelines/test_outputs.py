"""An existing output is refused before anything is read or computed."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.cli import main
from pipelines.cli.reporting import NEW
from pipelines.figures.style import save_figure
from pipelines.query.table import QueryOptions, write_answers

# Verbs without --overwrite replace what is theirs.
WRITING = [
    (verb, option)
    for verb, command in main.commands.items()
    for option in command.params
    if option.type is NEW and any(p.name == "overwrite" for p in command.params)
]


def test_every_verb_with_an_output_is_among_those_tried() -> None:
    verbs = {verb for verb, _ in WRITING}
    outputs = "compare export fit ingest predict query regress simulate view"
    assert verbs == set(outputs.split())
    for verb, command in main.commands.items():
        names = {param.name for param in command.params}
        assert not names & {"output", "overwrite"} or verb in (*verbs, "plot")


@pytest.mark.parametrize(
    ("verb", "option"), WRITING, ids=[f"{v}-{o.name}" for v, o in WRITING]
)
def test_an_existing_output_is_refused_before_the_inputs_are_looked_at(
    verb: str, option: click.Option, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    line = [verb]
    for other in main.commands[verb].params:
        if isinstance(other, click.Argument):
            line += ["absent"] * other.required
        elif other is not option and other.required:
            line += [other.opts[-1], str(tmp_path / f"fresh-{other.name}")]
    found = CliRunner().invoke(main, [*line, option.opts[-1], str(kept)])
    assert found.exit_code == 2, found.output
    assert f"{kept} exists" in found.output
    assert kept.read_text() == "mine" and list(tmp_path.iterdir()) == [kept]


def test_so_it_is_in_python(tmp_path: Path) -> None:
    import dustmap

    kept = tmp_path / "kept.parquet"
    kept.write_text("mine")
    nothing: dict = {}
    with pytest.raises(InputError, match="exists"):
        write_answers(None, None, QueryOptions(), kept)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exists"):
        ingest([tmp_path / "absent"], kept)
    with pytest.raises(InputError, match="exists"):
        dustmap.fit(nothing, output=kept)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("verb", "option"), WRITING, ids=[f"{v}-{o.name}" for v, o in WRITING]
)
def test_a_folder_of_others_is_not_replaced(
    verb: str, option: click.Option, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    line = [verb]
    for other in main.commands[verb].params:
        if isinstance(other, click.Argument):
            line += ["absent"] * other.required
        elif other is not option and other.required:
            line += [other.opts[-1], str(tmp_path / f"fresh-{other.name}")]
    found = CliRunner().invoke(main, [*line, option.opts[-1], str(kept), "--overwrite"])
    assert found.exit_code == 2 and "kept holds no" in found.output
    assert (kept / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("form", ["png", "pdf", "svg"])
def test_figures_of_others_are_not_replaced(tmp_path: Path, form: str) -> None:
    figure, path = Figure(), tmp_path / f"map.{form}"
    figure.subplots().plot([0, 1])
    figure.savefig(path)
    mine = path.read_bytes()
    with pytest.raises(InputError, match="not drawn by this program"):
        save_figure(figure, path)
    assert path.read_bytes() == mine
    path.unlink()
    save_figure(figure, path)
    save_figure(figure, path)
