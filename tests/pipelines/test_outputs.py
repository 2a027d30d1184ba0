"""An existing output is refused before anything is read or computed."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.cli import main
from pipelines.cli.reporting import NEW
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
    outputs = "compare export fit ingest predict query regress report simulate view"
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
