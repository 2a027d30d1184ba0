"""Descriptions of surveys: one TOML file each."""

from __future__ import annotations

import importlib.resources
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from pipelines.base.errors import InputError
from pipelines.catalog.units import INPUT_UNITS, parse_unit, sexagesimal
from pipelines.config.text import literal
from pipelines.storage.atomic import atomic_file

MINIMUM_PARALLAX_SNR = 5.0
_FOLDER = importlib.resources.files("catalogs")

# The last of the authors, where there are more than are named.
OTHERS = "others"
_LISTED = 3
_REFERENCE = re.compile(r"(?P<who>[^\d]+?) (?P<year>\d{4}), (?P<where>.+)")
_WHERE = re.compile(r"(?P<journal>.+?) (?P<volume>\d+), (?P<pages>[A-Z]?\d+)")

Name = Annotated[str, pydantic.StringConstraints(min_length=1)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Reference(_Strict):
    """One paper; what is empty is not known, and never guessed.

    ``authors`` are ``"Surname, Given names"`` or the surname alone, the last is
    ``"others"`` where there are more; ``note`` is what else is said, or all that is.
    """

    authors: list[Name] = []
    year: int | None = None
    title: str = ""
    journal: str = ""
    volume: str = ""
    pages: str = ""
    doi: str = ""
    note: str = ""

    @pydantic.model_validator(mode="after")
    def _identified(self) -> Reference:
        if not (self.authors and self.year) and not self.note:
            raise ValueError("a reference needs authors and year, or a note")
        return self

    @property
    def surnames(self) -> list[str]:
        """Surnames of the authors that are named, and ``"others"``."""
        return [name.split(",")[0] for name in self.authors]

    def __str__(self) -> str:
        """Cite it as an article does: ``Miglio et al. 2021, A&A 645, A85``."""
        if not self.authors:
            return self.note
        *first, last = self.surnames
        if last == OTHERS or len(first) >= _LISTED:
            who = f"{first[0]} et al."
        else:
            who = f"{', '.join(first)} & {last}" if first else last
        where = f"{self.journal} {self.volume}".strip()
        said = (f"{who} {self.year}", where, self.pages, self.note)
        return ", ".join(filter(None, said))


def _known_unit(text: str | None) -> str | None:
    if text is not None and not sexagesimal(text) and parse_unit(text) is None:
        raise ValueError(f"{text!r} is no unit")
    return text


Unit = Annotated[str | None, pydantic.AfterValidator(_known_unit)]


class PresetColumn(_Strict):
    """Where a canonical quantity comes from: a column, or one value for all rows.

    A column is multiplied by ``times``.
    """

    column: str | None = None
    times: pydantic.FiniteFloat = 1.0
    value: pydantic.FiniteFloat | None = None
    unit: Unit = None
    optional: bool = False

    @pydantic.model_validator(mode="after")
    def _one_origin(self) -> PresetColumn:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        if self.value is not None and self.unit is None:
            raise ValueError("a value needs a unit")
        return self


class KeptColumn(_Strict):
    """A further column that is carried along unchanged."""

    column: str
    unit: Unit = None
    optional: bool = False


class Preset(_Strict):
    """One survey.

    Parameters
    ----------
    references
        Whom to cite, paper by paper. Instead there may be ``reference``, one line such
        as ``A & B 2023, A&A 1, 2; C et al. 2020, ApJ 3, 4``, and ``doi`` of the first.
    band
        The extinction's band or wavelength.
    tested_on
        ``"real"`` where a sample of the survey was at hand, ``"generated"`` where
        the description follows its published data model alone.
    notes
        What a user should know: caveats, published names, other columns.
    columns, widths, cuts, keep
        Canonical name to its origin; values per row of each two-dimensional column;
        name of a quality cut to its filter, each of which must pass; name in the
        output to a further column.
    min_parallax_snr
        Parallaxes below this signal-to-noise are cut.
    """

    name: str
    title: str
    references: list[Reference] = []
    reference: str = ""
    doi: str = ""
    band: str
    tested_on: Literal["real", "generated"]
    notes: str
    columns: dict[str, PresetColumn]
    widths: dict[str, pydantic.PositiveInt] = {}
    cuts: dict[str, str] = {}
    keep: dict[str, KeptColumn] = {}
    min_parallax_snr: pydantic.PositiveFloat = MINIMUM_PARALLAX_SNR

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Preset:
        unknown = set(self.columns) - set(INPUT_UNITS) - {"source_id"}
        if unknown:
            raise ValueError(f"not canonical: {', '.join(sorted(unknown))}")
        if len({"references", "reference"} & self.model_fields_set) != 1:
            raise ValueError("give either references or reference")
        if self.references and self.doi:
            raise ValueError("give each of the references its doi")
        return self

    @property
    def cited(self) -> str:
        """Whom to cite, in one line."""
        return "; ".join(map(str, references_of(self.model_dump())))


def list_presets() -> list[str]:
    """Return the names of the surveys that are described here, sorted."""
    names = sorted(item.name for item in _FOLDER.iterdir())
    return [name.removesuffix(".toml") for name in names if name.endswith(".toml")]


def write_preset(path: Path, preset: Preset, *, overwrite: bool = False) -> None:
    """Write a preset as TOML, which `load_preset` reads.

    Raises
    ------
    InputError
        If ``path`` has another ending, or exists and ``overwrite`` is false.
    """
    if path.suffix != ".toml":
        raise InputError(f"{path}: a preset's name ends in .toml")
    content = preset.model_dump(exclude_none=True, exclude_defaults=True)
    if "references" not in content:
        content = {"reference": "", **content}
    tables = {name: part for name, part in content.items() if isinstance(part, dict)}
    plain = {name: part for name, part in content.items() if name not in tables}
    lines = [f"{name} = {_inline(value)}" for name, value in plain.items()]
    for name, part in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{literal(key)} = {_inline(each)}" for key, each in part.items()]
    with atomic_file(path, overwrite=overwrite) as temporary:
        temporary.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    if not isinstance(value, dict):
        return literal(value)
    parts = ", ".join(f"{key} = {_inline(each)}" for key, each in value.items())
    return f"{{ {parts} }}"


def fitting_presets(columns: Collection[str], folders: Iterable[Path]) -> list[str]:
    """Return presets whose columns are all there, of surveys or saved in folders."""
    saved = [str(path) for folder in folders for path in sorted(folder.glob("*.toml"))]
    found = []
    for name in dict.fromkeys([*list_presets(), *saved]):
        try:
            preset = load_preset(name)
        except InputError:
            # Another kind of TOML.
            continue
        needed = [c.column for c in preset.columns.values() if not c.optional]
        # Two-dimensional columns are named with an index.
        bare = {name.split("[")[0] for name in needed if name is not None}
        if bare and bare <= set(columns):
            found.append(name)
    return found


def load_preset(name: str) -> Preset:
    """Return a preset by its name, or read one from the path of a TOML file.

    Raises
    ------
    InputError
        If there is no such preset or file, or it is not a valid description.
    """
    known = name in list_presets()
    if not known and not name.endswith(".toml"):
        raise InputError(
            f"there is no preset {name!r}; there are {', '.join(list_presets())}, or "
            "give the path of a .toml file"
        )
    try:
        text = (_FOLDER / f"{name}.toml" if known else Path(name)).read_text("utf-8")
        return Preset.model_validate(tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the preset {name}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the preset {name} is no TOML: {error}") from error
    except pydantic.ValidationError as error:
        places = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        faults = "; ".join(f"{place}: {fault}" for place, fault in places)
        raise InputError(f"the preset {name} is not valid: {faults}") from error


def parse_references(text: str, doi: str = "") -> list[Reference]:
    """Parse one line: ``A & B 2023, A&A 1, 2; C et al. 2020, ApJ 3, 4``.

    The DOI is that of the first. What is written otherwise is kept as a note. Titles
    of papers cannot be had from it.
    """
    texts = filter(None, text.split("; ")) if text else filter(None, [doi])
    return [_parsed(one, "" if number else doi) for number, one in enumerate(texts)]


def references_of(work: dict[str, Any]) -> list[Reference]:
    """Return the references of a preset or another work, as its JSON states them."""
    if work.get("references"):
        return [Reference.model_validate(one) for one in work["references"]]
    return parse_references(work.get("reference", ""), work.get("doi", ""))


def plain(references: list[Reference]) -> list[dict[str, Any]]:
    """Return references as JSON, without unknown parts."""
    return [one.model_dump(mode="json", exclude_defaults=True) for one in references]


def _parsed(text: str, doi: str) -> Reference:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return Reference(note=text, doi=doi)
    who = found["who"].replace(" et al.", f" & {OTHERS}")
    where = _WHERE.fullmatch(found["where"])
    return Reference(
        authors=[name.strip() for name in re.split(r" & |, ", who)],
        year=int(found["year"]),
        doi=doi,
        **(where.groupdict() if where else {"note": found["where"]}),
    )
