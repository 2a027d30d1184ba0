"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

_MINUS, _FIXED = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"


def count(number: float) -> str:
    """A whole number with separators of thousands."""
    return f"{int(number):,}"


def several(number: float, noun: str) -> str:
    """``1 star``, ``2 stars``."""
    return f"{count(number)} {noun}{'' if int(number) == 1 else 's'}"


def significant(number: float, digits: int = 3) -> str:
    """A measured number: to so many digits, zeros at the end included."""
    if not math.isfinite(number) or (number and not 1e-5 < abs(number) < 1e9):
        return plain(number, digits)
    leading = math.floor(math.log10(abs(number))) if number else 0
    decimals = max(0, digits - 1 - leading)
    return f"{number:,.{decimals}f}".replace("-", _MINUS)


def plain(number: float, digits: int = 4) -> str:
    """A number that was set: no more digits than it has."""
    text = f"{number:.{digits}g}"
    if "e" in text and 1 <= abs(number) < 1e9:
        text = f"{number:.0f}"
    return text.replace("-", _MINUS)


def percent(fraction: float, error: float | None = None) -> str:
    """A fraction in percent, with its error where there is one."""
    if error is None:
        return f"{100 * fraction:.1f}%"
    return f"{100 * fraction:.1f}{_FIXED}±{_FIXED}{100 * error:.1f}%"


def by(numbers: Iterable[float], digits: int = 4) -> str:
    """``4200 × 4300 × 900``; one number where all are equal."""
    texts = [plain(number, digits) for number in numbers]
    return texts[0] if len(set(texts)) == 1 else " × ".join(texts)


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as suits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    """Bytes in the binary unit that suits."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"
