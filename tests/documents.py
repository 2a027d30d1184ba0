"""What a text for users promises: commands, options, settings, names and files."""

from __future__ import annotations

import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from pipelines.cli import main
from pipelines.config import FitConfig, load_config

ROOT = Path(__file__).resolve().parents[1]
_SECTIONS = "box|prior|model|inference|svi|budget|data|checkpoint"


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.M | re.S)
    return [re.sub(rf"(?m)^{indent}", "", body) for indent, body in found]


def commands(text: str) -> list[list[str]]:
    """The words of every ``dustmap`` command in the shell blocks."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    split = [shlex.split(line, comments=True) for line in lines if line.strip()]
    return [words for words in split if words and Path(words[0]).name == "dustmap"]


def options(verb: str) -> set[str]:
    """All spellings of the options of a verb, by what click knows of it."""
    known = {
        name
        for option in main.commands[verb].params
        for name in (*option.opts, *option.secondary_opts)
    }
    return known | {"-h", "--help"}


def given(words: list[str], option: str) -> list[str]:
    """What follows each occurrence of an option."""
    return [after for before, after in pairwise(words) if before == option]


def require_command(words: list[str]) -> None:
    """The verb exists, with these options, and its settings do."""
    verb = words[1]
    if verb.startswith("-"):
        named, result = [], CliRunner().invoke(main, words[1:])
    else:
        named = [word for word in words[2:] if re.match(r"--?[a-z]", word)]
        result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert [name for name in named if name not in options(verb)] == []
    load_config(FitConfig, overrides=given(words, "--set"))


def require_settings(text: str) -> int:
    """Every setting in the text exists, with the value it is given; how many."""
    pairs = re.findall(rf"`(?:--set )?((?:{_SECTIONS})\.\w+=[^`]+)`", text)
    for pair in pairs:
        load_config(FitConfig, overrides=[pair])
    named = re.findall(rf"`((?:{_SECTIONS})\.\w+)(?: = [^`]*)?`", text)
    for key in named:
        section, name = key.split(".")
        assert name in type(getattr(FitConfig(), section)).model_fields, key
    return len(pairs) + len(named)


def missing_files(text: str) -> list[str]:
    """Files and folders of the project in code or links that are not there.

    NAME in capitals stands for what a reader puts there.
    """
    top = "scripts|tests|dustmap|pipelines|catalogs|notebooks"
    named = re.findall(rf"`(?:python |sbatch |bash )?((?:{top})/[\w./-]*)", text)
    linked = re.findall(rf"\]\(((?:{top})/[^)#]+)\)", text)
    certain = [name for name in [*named, *linked] if "NAME" not in name]
    return [name for name in certain if not (ROOT / name).exists()]


def missing_names(text: str) -> list[str]:
    """Dotted names of the packages that nothing answers to."""
    named = re.findall(r"`((?:dustmap|pipelines)(?:\.\w+)+)", text)
    return [name for name in named if not _found(name)]


def _found(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
