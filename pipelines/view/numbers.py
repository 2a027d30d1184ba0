"""Numbers as the page states them."""

from __future__ import annotations

import math
from collections.abc import Iterable

_MINUS = "\N{MINUS SIGN}"
_FIXED = "\N{NO-BREAK SPACE}"


def count(number: float) -> str:
    """Format a whole number with separators of thousands."""
    return f"{int(number):,}"


def several(number: float, noun: str) -> str:
    """Format ``1 star``, ``2 stars``."""
    return f"{count(number)} {noun}{'' if int(number) == 1 else 's'}"


def significant(number: float, digits: int = 3) -> str:
    """Format a measured number to significant digits, including trailing zeros."""
    if not math.isfinite(number) or (number and not 1e-5 < abs(number) < 1e9):
        return plain(number, digits)
    leading = math.floor(math.log10(abs(number))) if number else 0
    decimals = max(0, digits - 1 - leading)
    return f"{number:,.{decimals}f}".replace("-", _MINUS)


def plain(number: float, digits: int = 4) -> str:
    """Format a setting without superfluous digits."""
    text = f"{number:.{digits}g}"
    if "e" in text and 1 <= abs(number) < 1e9:
        text = f"{number:.0f}"
    return text.replace("-", _MINUS)


def percent(fraction: float, error: float | None = None) -> str:
    """Format a fraction in percent, with its error if given."""
    around = "" if error is None else f"{_FIXED}±{_FIXED}{100 * error:.1f}"
    return f"{100 * fraction:.1f}{around}%"


def by(numbers: Iterable[float], digits: int = 4) -> str:
    """Format ``4200 × 4300 × 900``, or one number if all are equal."""
    texts = [plain(number, digits) for number in numbers]
    return texts[0] if len(set(texts)) == 1 else " × ".join(texts)


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit up to hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    """Format bytes in MiB or GiB."""
    mebi = number / 2**20
    return f"{mebi:.3g} MiB" if mebi < 1024 else f"{mebi / 1024:.2f} GiB"


FORMATS = (by, count, duration, percent, plain, several, significant, size)
