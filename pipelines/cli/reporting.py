"""Options shared by verbs, and the reporting of errors.

Exit status: 0 done, 1 failed, 2 bad input or usage, 75 stopped by a signal (the same
command with ``--resume`` continues).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import Pulse, rank_mark
from pipelines.base.quantities import degrees, parsecs
from pipelines.storage.atomic import check_output

if TYPE_CHECKING:
    from pipelines.maps.answers import Answers
    from pipelines.run.verdict import Verdict

DUSTMAPS_GIVES = "Values of a map of dustmaps: extinctions, or densities."
# EX_TEMPFAIL of sysexits.h, after which job scripts requeue the same command.
_TRY_AGAIN = 75


class Parsed(click.ParamType):
    """An option parsed by ``read``; its `ValueError` becomes a usage error.

    ``name`` is the metavar in the help.
    """

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse a text; defaults remain unchanged."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _listed(
    read: Callable[[str], float], count: int | None = None
) -> Callable[[str], tuple[float, ...]]:
    """Return a parser of values separated by commas, ``count`` of them if given."""

    def parse(text: str) -> tuple[float, ...]:
        values = tuple(read(part) for part in text.split(","))
        if count not in (None, len(values)):
            raise ValueError(f"expected {count} values and a comma, got {text!r}")
        return values

    return parse


def _direction(text: str) -> tuple[float, ...]:
    l, b = _listed(degrees, 2)(text)  # noqa: E741
    if not (-360 <= l <= 360 and -90 <= b <= 90):
        raise ValueError(
            f"expected Galactic longitude and latitude [deg] as L,B, got {text!r}"
        )
    return l, b


OUT = click.Path(path_type=Path)
NEW = click.Path(path_type=Path)
"""The type of every file or folder to write, which `reporting` checks first."""
LENGTH = Parsed("pc", parsecs)
LENGTHS = Parsed("pc,pc,...", _listed(parsecs))
ANGLE = Parsed("deg", degrees)
ANGLES = Parsed("w,h", _listed(degrees, 2))
DIRECTION = Parsed("l,b", _direction)
_TRIPLE = Parsed("pc[,pc,pc]", _listed(parsecs))
RIGHT_ASCENSION = Parsed("deg", partial(degrees, hours=True))
NAMES = Parsed(
    "a,b,...", lambda text: [n.strip() for n in text.split(",") if n.strip()]
)
PERCENTILES = Parsed("p,p,...", _listed(float))
OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
)
ESTIMATE = click.option(
    "--estimate",
    type=click.Choice(("kriged", "map")),
    help="Of extinctions: map and kriging together, or the map without kriging.",
)
CONFIG = click.option("-c", "--config", type=OUT, help="TOML configuration.")
SETTINGS = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key of the configuration. Repeatable.",
)
OUTSIDE = click.option(
    "--outside",
    type=click.Choice(("nan", "prior")),
    default="nan",
    help="Beyond the box: no value, or go on with the prior.  [default: nan]",
)
REQUIRE = click.option(
    "--require",
    type=click.Choice(("usable", "care")),
    help="End with status 1, after writing, if the verdict is worse than this.",
)


def output(help: str) -> Callable[[Any], Any]:
    """Add the required option for the output."""
    return click.option("-o", "--output", required=True, type=NEW, help=help)


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds these options in order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


band_options = together(
    click.option("--band", help="Convert to this band: A_G, E(B-V), A(550 nm), ..."),
    click.option("--declare-band", help="The map's band if unknown."),
    click.option("--curve", help="Curve of dust_extinction.  [default: G23]"),
    click.option("--r-v", type=float, help="R_V of the curve.  [default: 3.1]"),
)


def stated_options(prefix: str = "", *, band: bool = False) -> Callable[[Any], Any]:
    """Add what a user says of another program's map, with a prefix of the names."""
    of = f"Of the map of --{prefix}: " if prefix else ""
    dash = f"--{prefix}-" if prefix else "--"

    def option(name: str, text: str, **kind: Any) -> Callable[[Any], Any]:
        return click.option(dash + name, help=of + text, **kind)

    options = [
        option("unit", "unit of another program's map: mag/pc, mag, mag/bin."),
        option("map-of", "a published map: edenhofer2024, bayestar2019, ..."),
        option("origin", "first cell's centre, if not stated.", type=_TRIPLE),
        option("step", "size of the cells, if not stated.", type=_TRIPLE),
        option("frame", "their axes.", type=click.Choice(["galactic", "lbd"])),
    ]
    if band or prefix:
        options.append(option("declare-band", "band, if not stated."))
    return together(*options)


def stated_of(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Remove `stated_options` from ``options``, and return those that are given."""
    head = f"{prefix}_" if prefix else ""
    names = ("unit", "map_of", "origin", "step", "frame")
    names = (*names, "declare_band") if prefix else names
    found = {name: options.pop(head + name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


fill_options = together(
    click.option(
        "--fill",
        metavar="MAP",
        help="Continue the map by this one: a run, map.zarr, map.fits, .npz, or "
        "dustmaps:MODULE.CLASS.",
    ),
    click.option(
        "--fill-beyond",
        type=click.Choice(["box", "stars"]),
        help="From the edge of the box, or from the last star.  [default: box]",
    ),
    click.option("--fill-factor", type=float, help="Factor to the map's band."),
    click.option(
        "--fill-integrated/--fill-differential", default=None, help=DUSTMAPS_GIVES
    ),
    stated_options("fill"),
)
target_options = together(
    click.option(
        "--map",
        "mappings",
        multiple=True,
        metavar="CANONICAL=COLUMN[:UNIT]",
        help="Column of TABLE for l, b (or ra, dec), distance.",
    ),
    click.option(
        "--preset", help="A survey's preset, or one saved by ingest --save-preset."
    ),
    click.option("--prefix", help="Prefix of the names of new columns."),
)


def fill_of(options: dict[str, Any]) -> tuple[Answers | None, str | None]:
    """Remove ``fill_options`` from ``options``, and open the map to continue with.

    Returns the map, and the end from which it continues.
    """
    reference, beyond, factor, integrated = (
        options.pop(f"fill{name}") for name in ("", "_beyond", "_factor", "_integrated")
    )
    stated = stated_of(options, "fill")
    if reference is None:
        if (beyond, factor, integrated) != (None, None, None) or stated:
            raise InputError("--fill-beyond, --fill-factor and the like need --fill")
        return None, None
    from pipelines.maps.opening import open_filling

    other = open_filling(reference, factor=factor, integrated=integrated, **stated)
    return other, beyond


def converted(answers: Answers, options: dict[str, Any]) -> Answers:
    """Choose the estimate and the band of a map, and print the conversion."""
    by = {name: options[name] for name in ("curve", "r_v")}
    answers = answers.estimated(options["estimate"])
    found = answers.in_band(options["band"], options.get("declare_band"), **by)
    for change in found.changes:
        click.echo(change.summary(), err=True)
    return found


def refuse(names: Iterable[str], why: str) -> None:
    """Raise `InputError` if one of these options is on the command line.

    ``why`` says what it does not go with: there it would have no effect.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(p for p in context.command.params if p.name == name)
            raise InputError(f"{option.opts[0]} {why}")


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Convert errors to one message and a status; refuse existing `NEW` paths first."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            # A fit resumes into its own run.
            resumes = kwargs.get("resume")
            options = click.get_current_context().command.params
            for name in (str(p.name) for p in options if p.type is NEW):
                given = kwargs[name] if "overwrite" in kwargs and not resumes else None
                for path in (
                    given if isinstance(given, tuple) else filter(None, [given])
                ):
                    check_output(path, overwrite=kwargs["overwrite"])
            with Pulse(str(click.get_current_context().info_name)):
                command(*args, **kwargs)
        except InputError as error:
            _fail(2, f"{error}")
        except Stopped as reason:
            _fail(_TRY_AGAIN, f"{reason}")
        except (OSError, MemoryError, RuntimeError, ArithmeticError) as error:
            _fail(1, f"failed: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            how = "nothing was written"
            if "resume" in kwargs:
                how = "the same command with --resume goes on from what is saved"
            _fail(1, f"interrupted; {how}")

    return guarded


def check_verdict(verdict: Verdict, required: str | None) -> None:
    """End with status 1 if a verdict is worse than ``--require``."""
    if required is not None and not verdict.meets(required):
        _fail(1, f"the verdict is {verdict.grade!r}, worse than --require {required}")


def _fail(status: int, message: str) -> None:
    click.echo(f"{rank_mark()}dustmap: {message}", err=True)
    sys.exit(status)
