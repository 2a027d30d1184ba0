"""Options that verbs share, and how errors are reported.

Exit status: 0 done, 1 failed, 2 bad input or usage, 75 stopped by a signal, to be taken
up again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import rank_mark
from pipelines.base.quantities import degrees, parsecs

if TYPE_CHECKING:
    from pipelines.maps.answers import Answers
    from pipelines.run.verdict import Verdict


class Parsed(click.ParamType):
    """A value that ``read`` makes of a text; its `ValueError` is the user's mistake."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read it."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _lengths(text: str) -> list[float]:
    try:
        return [parsecs(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"expected numbers in pc separated by commas, got {text!r}"
        ) from None


def _two_angles(text: str) -> tuple[float, float]:
    try:
        first, second = (degrees(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"expected two angles in degrees such as 120,-5, got {text!r}"
        ) from None
    return first, second


def _direction(text: str) -> tuple[float, float]:
    l, b = _two_angles(text)  # noqa: E741
    if not (-360 <= l <= 360 and -90 <= b <= 90):
        raise ValueError(
            f"expected Galactic longitude and latitude [deg] as L,B, got {text!r}"
        )
    return l, b


OUT = click.Path(path_type=Path)
LENGTH = Parsed("length", parsecs)
LENGTHS = Parsed("lengths", _lengths)
ANGLE = Parsed("angle", degrees)
ANGLES = Parsed("angles", _two_angles)
DIRECTION = Parsed("direction", _direction)
RIGHT_ASCENSION = Parsed("angle", partial(degrees, hours=True))
OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
)
REQUIRE = click.option(
    "--require",
    type=click.Choice(("usable", "care")),
    help="End with status 1, after writing, where the verdict is worse than this.",
)
# What sysexits.h calls EX_TEMPFAIL: job scripts queue the same command again.
_TRY_AGAIN = 75


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return one decorator that adds these options, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


band_options = _together(
    click.option("--band", help="Convert to this band: A_G, E(B-V), A(550 nm), ..."),
    click.option("--declare-band", help="State the map's band if it is not known."),
    click.option("--curve", help="Curve of dust_extinction.  [default: G23]"),
    click.option("--r-v", type=float, help="R_V of the curve.  [default: 3.1]"),
)
fill_options = _together(
    click.option(
        "--fill",
        metavar="MAP",
        help="Continue the map by this one: a run, map.zarr, map.fits, .npz, or "
        "dustmaps:MODULE.CLASS.",
    ),
    click.option(
        "--fill-beyond",
        type=click.Choice(["box", "stars"]),
        help="From the edge of the box, or where no star looks.  [default: box]",
    ),
    click.option(
        "--fill-factor",
        type=float,
        help="What turns its values into the band of the map.",
    ),
    click.option(
        "--fill-integrated/--fill-differential",
        default=None,
        help="What a map of dustmaps gives: extinctions or densities.",
    ),
)
target_options = _together(
    click.option(
        "--map",
        "mappings",
        multiple=True,
        metavar="CANONICAL=COLUMN[:UNIT]",
        help="Which column of TABLE is l, b (or ra, dec), distance.",
    ),
    click.option(
        "--preset", help="Or a survey's preset, or one saved by ingest --save-preset."
    ),
)


def fill_of(options: dict[str, Any]) -> tuple[Answers | None, str | None]:
    """Open the map that continues another one; take its options out of ``options``.

    Return it, and from where it goes on.
    """
    reference, beyond = options.pop("fill"), options.pop("fill_beyond")
    factor, integrated = options.pop("fill_factor"), options.pop("fill_integrated")
    if reference is None:
        if (beyond, factor, integrated) != (None, None, None):
            raise InputError("--fill-beyond, --fill-factor and the like go with --fill")
        return None, None
    from pipelines.maps.opening import open_other

    return open_other(reference, factor=factor, integrated=integrated), beyond


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what went wrong into one message and an exit status."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            _fail(2, f"{error}")
        except Stopped as reason:
            _fail(_TRY_AGAIN, f"{reason}")
        except (OSError, MemoryError, RuntimeError, ArithmeticError) as error:
            _fail(1, f"failed: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            _fail(1, "interrupted; nothing was written")

    return guarded


def check_verdict(verdict: Verdict, required: str | None) -> None:
    """End with status 1 where a verdict is worse than ``--require`` allows."""
    if required is not None and not verdict.meets(required):
        _fail(1, f"the verdict is {verdict.grade!r}, worse than --require {required}")


def _fail(status: int, message: str) -> None:
    click.echo(f"{rank_mark()}dustmap: {message}", err=True)
    sys.exit(status)
