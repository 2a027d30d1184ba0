"""What every verb shares: common options, and how errors are reported.

Exit status: 0 done, 1 failed, 2 bad input or usage, 75 stopped by a signal, to be taken
up again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import rank_mark
from pipelines.base.quantities import degrees, parsecs

OUT = click.Path(path_type=Path)
# What sysexits.h calls EX_TEMPFAIL: job scripts queue the same command again.
_TRY_AGAIN = 75
OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
)


class Quantity(click.ParamType):
    """A number in a usual unit, or a text with one; `ValueError` is the user's."""

    def __init__(self, name: str, read: Callable[[str], float]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Read it."""
        try:
            return float(self._read(value) if isinstance(value, str) else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


LENGTH = Quantity("length", parsecs)
ANGLE = Quantity("angle", degrees)
RIGHT_ASCENSION = Quantity("angle", partial(degrees, hours=True))
_BAND_OPTIONS = (
    click.option("--band", help="Convert to this band: A_G, E(B-V), A(550 nm), ..."),
    click.option("--from-band", help="The catalogue's band, where it is not known."),
    click.option("--curve", help="Curve of dust_extinction.  [default: G23]"),
    click.option("--r-v", type=float, help="R_V of the curve.  [default: 3.1]"),
)


def band_options(command: Any) -> Any:
    """The options of a conversion to another band."""
    for option in reversed(_BAND_OPTIONS):
        command = option(command)
    return command


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


def _fail(status: int, message: str) -> None:
    click.echo(f"{rank_mark()}dustmap: {message}", err=True)
    sys.exit(status)
