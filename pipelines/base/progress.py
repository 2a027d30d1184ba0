"""Progress for people and for logs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import Self, TextIO

from tqdm import tqdm

# Least time between two lines of a log [s].
_INTERVAL = 10.0


def rank() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as torchrun sets them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_mark() -> str:
    """Return the mark of this process on its lines; empty where it is alone."""
    own, size = rank()
    return f"[rank {own}/{size}] " if size > 1 else ""


def say(message: str, *, stream: TextIO | None = None) -> None:
    """Write a line to ``stream`` (standard error) without breaking a bar there.

    Of several processes only the first one talks.
    """
    if rank()[0] == 0:
        tqdm.write(rank_mark() + message, file=stream or sys.stderr)


class Progress:
    """The progress of one stage, as a context; only the first process shows it.

    On a terminal it is a bar, elsewhere lines: the first step, the last one, and one
    every ten seconds.

    Parameters
    ----------
    description, total, unit
        The work, its number of steps (``None`` if unknown), and their name.
    stream
        Where to write; standard error unless given.

    Examples
    --------
    >>> with Progress(description="solve", total=500) as progress:  # doctest: +SKIP
    ...     progress.update(residual=0.01)
    """

    def __init__(
        self,
        *,
        description: str,
        total: int | None = None,
        unit: str = "it",
        stream: TextIO | None = None,
    ) -> None:
        self._description = description
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._silent = rank()[0] > 0
        self._bar: tqdm | None = None
        self._postfix: dict[str, object] = {}
        self._start = self._spoken = time.monotonic()
        self._count = 0
        self._reported: int | None = None

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._stream.isatty() and not self._silent:
            self._bar = tqdm(
                total=self._total,
                desc=self._description,
                unit=self._unit,
                file=self._stream,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._reported != self._count and (self._count or kind is None):
            self._report()

    def update(self, steps: int = 1, **postfix: object) -> None:
        """Count ``steps`` more, and show ``postfix`` (name to value) beside them."""
        self._count += steps
        self.show(**postfix)
        if self._bar is not None:
            self._bar.update(steps)
        elif (
            self._reported is None
            or self._count == self._total
            or time.monotonic() - self._spoken >= _INTERVAL
        ):
            self._report()

    def show(self, **postfix: object) -> None:
        """Change the notes beside the count; they appear with the next report.

        A number that is not known, NaN, leaves the last one.
        """
        known = {name: value for name, value in postfix.items() if value == value}
        self._postfix.update(known)
        if self._bar is not None and postfix:
            self._bar.set_postfix_str(self._beside(), refresh=False)

    def _beside(self) -> str:
        return ", ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self._postfix.items()
        )

    def _report(self) -> None:
        self._spoken, self._reported = time.monotonic(), self._count
        if self._silent:
            return
        done, share = str(self._count), ""
        if self._total:
            done, share = f"{done}/{self._total}", f" ({self._count / self._total:.0%})"
        parts = [
            f"{self._description}: {done} {self._unit}{share}",
            f"{self._spoken - self._start:.1f} s",
            self._beside(),
        ]
        line = ", ".join(part for part in parts if part)
        print(rank_mark() + line, file=self._stream, flush=True)
