"""Progress for people and for logs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

from tqdm import tqdm


def rank() -> tuple[int, int]:
    """Which of how many processes this is, by what torchrun sets."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_mark() -> str:
    """What lines begin with where there are several processes; else nothing."""
    own, size = rank()
    return f"[rank {own}/{size}] " if size > 1 else ""


def say(message: str, *, stream: TextIO | None = None, any_rank: bool = False) -> None:
    """Write a line to ``stream`` (standard error) without breaking a bar there.

    Of several processes only the first one talks, unless ``any_rank``.
    """
    if any_rank or rank()[0] == 0:
        tqdm.write(rank_mark() + message, file=stream or sys.stderr)


class Progress:
    """The progress of one stage, as a context; only the first process shows it.

    Parameters
    ----------
    description, total, unit
        What is being done, in how many steps (``None`` if unknown) of which name.
    stream
        Where to write; standard error unless given.
    interval
        Least time between two log lines [s]. The first and the last always appear.
    clock
        Monotonic time [s].

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
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._description = description
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._interval = interval
        self._clock = clock
        self._count = 0
        self._postfix: dict[str, object] = {}
        self._bar: tqdm | None = None
        self._start = self._spoken = clock()
        self._reported: int | None = None
        self._silent = rank()[0] > 0

    def __enter__(self) -> Self:
        self._start = self._clock()
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
            or self._clock() - self._spoken >= self._interval
        ):
            self._report()

    def show(self, **postfix: object) -> None:
        """Change what stands beside the count; it appears with the next report.

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
        self._spoken = self._clock()
        self._reported = self._count
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
