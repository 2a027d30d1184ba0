"""Options shared by verbs, and the reporting of errors.

Exit status: 0 done, 1 failed, 2 bad input or usage, 75 stopped by a signal (the same
command with ``--resume`` continues).
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import dustmap
from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import Pulse, rank_mark
from pipelines.base.quantities import degrees, parsecs
from pipelines.storage.atomic import check_output

if TYPE_CHECKING:
    from pipelines.bands import Conversion
    from pipelines.query.map import DustMap
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


class Grouped(click.Command):
    """A command whose help has headings, ``groups`` by the first option under each."""

    def __init__(self, *args: Any, groups: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> Any:
        """Write the options under their headings."""
        written: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if option.name in self.groups:
                written[self.groups[option.name]] = []
            record = option.get_help_record(ctx)
            if record and isinstance(option, click.Option):
                [*written.values()][-1].append(record)
        for heading, records in written.items():
            with formatter.section(heading):
                formatter.write_dl(records)


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
RIGHT_ASCENSION = Parsed("deg", partial(degrees, hours=True))
NAMES = Parsed(
    "a,b,...", lambda text: [n.strip() for n in text.split(",") if n.strip()]
)
FACTOR = click.FloatRange(min=0, min_open=True)
PERCENTILES = Parsed("p,p,...", _listed(float))
OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
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
    help="Beyond the box: no value, or go on with the prior.",
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


def _one_band(context: Any, option: Any, bands: tuple[str, ...]) -> str | None:
    """Refuse several bands, of which click would take the last."""
    if len(bands) > 1:
        raise click.UsageError(f"expected one --band, got {', '.join(bands)}")
    return bands[0] if bands else None


_TO = "Convert to this band: A_G, E(B-V), A(550 nm), ..."
_BAND = partial(click.option, "--band", multiple=True)
ONE_BAND = partial(_BAND, callback=_one_band, help=_TO)
band_options = together(
    click.option("--declare-band", help="The map's band if unknown."),
    click.option("--curve", help="Curve of dust_extinction.  [default: G23]"),
    click.option("--r-v", type=float, help="R_V of the curve.  [default: 3.1]"),
    click.option("--at-av", type=float, help="A_V of the factor.  [default: 1 mag]"),
)


target_options = together(
    _BAND(help=f"{_TO} Repeatable."),
    click.option("--deredden", type=NAMES, default=(), help="Magnitudes, as G,BP,RP."),
    click.option(
        "--map",
        "mappings",
        multiple=True,
        metavar="CANONICAL=COLUMN[:UNIT]",
        help="Column of TABLE for l, b (or ra, dec), distance (or parallax, or "
        "distance_modulus), as in ingest, and its error, over which answers are then "
        "averaged; or for a magnitude.",
    ),
    click.option(
        "--preset", help="A survey's preset, or one saved by ingest --save-preset."
    ),
    click.option("--prefix", help="Prefix of the names of new columns."),
)


def wanted(dust: DustMap, options: dict[str, Any], *bands: str) -> list[Conversion]:
    """Return the changes to bands of a map, by default of --band, and print them."""
    from pipelines.bands import source_band, wanted_conversion

    stated, declared = dust.band, options["declare_band"]
    by = {name: options[name] for name in ("curve", "r_v", "at_av")}
    usual = source_band(stated, declared) if options["deredden"] else None
    every = bands or options["band"] or (usual,)
    changes = [wanted_conversion(stated, band, declared, **by) for band in every]
    for change in filter(None, changes):
        click.echo(change.summary(), err=True)
    return [change for change in changes if change is not None]


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
        import astropy  # noqa: F401  its import sets how warnings are shown

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
            with (
                Pulse(str(click.get_current_context().info_name)),
                warnings.catch_warnings(),
            ):
                warnings.showwarning = _note
                # All readers of FITS take long keywords.
                warnings.filterwarnings("ignore", "(?s).*a HIERARCH card will be")
                command(*args, **kwargs)
        except InputError as error:
            _fail(2, f"{error}")
        except Stopped as reason:
            _fail(_TRY_AGAIN, f"{reason}")
        except BrokenPipeError:
            # The reader of a pipe, such as head, has ended: nothing is left to say.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (OSError, MemoryError) as error:
            _fail(1, f"failed: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            how = "nothing was written"
            if "resume" in kwargs:
                how = "the same command with --resume goes on from what is saved"
            _fail(1, f"interrupted; {how}")
        except click.ClickException:
            raise
        except Exception as error:  # whatever else is a fault of the program
            place = traceback.extract_tb(error.__traceback__)[-1]
            _fail(
                1,
                f"failed: {type(error).__name__}: {error} (a fault of dustmap "
                f"{dustmap.__version__}, {place.filename}:{place.lineno}: please "
                "report this line and the command)",
            )

    return guarded


def check_verdict(verdict: Verdict, required: str | None) -> None:
    """End with status 1 if a verdict is worse than ``--require``."""
    if required is not None and not verdict.meets(required):
        _fail(1, f"the verdict is {verdict.grade!r}, worse than --require {required}")


def _note(message: Warning | str, *_: Any) -> None:
    """Print a warning of a library as one line."""
    click.echo(f"{rank_mark()}note: {' '.join(f'{message}'.split())}", err=True)


def _fail(status: int, message: str) -> None:
    click.echo(f"{rank_mark()}dustmap: {message}", err=True)
    sys.exit(status)
