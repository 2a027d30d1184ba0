"""What the user asks of an ingestion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.bands.passbands import parse_band
from pipelines.base.errors import InputError

REPEATS = ("keep", "first", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """What the user asks for.

    Parameters
    ----------
    preset
        Name of a survey's description, or the path of one.
    mappings
        ``CANONICAL=COLUMN[:UNIT]``; they go before the preset.
    where
        A further quality cut; see `pipelines.catalog.filters.RowFilter`.
    keep
        Further columns to carry along.
    positions_only
        Whether to leave extinctions out, for a table to predict at.
    max_bad
        The fraction of faulty rows, of those that pass the filters, beyond which the
        input is refused.
    min_parallax_snr
        Parallaxes below this signal-to-noise are cut; default the preset's, or 5.
    band
        The band that extinctions are converted to, e.g. ``A_V`` or ``E(B-V)``
        (`pipelines.bands`); default that of the first catalogue.
    declare_band
        The band of extinctions that is stated neither by a preset nor by a table that
        was ingested before.
    any_range
        Whether to accept medians that look as if the unit were another
        (`pipelines.catalog.soundness.find_doubts`).
    repeats
        What happens to objects that are in more than one catalogue, by ``source_id``:
        ``keep`` all, keep the ``first``, or refuse them as an ``error``.
    """

    preset: str | None = None
    mappings: Sequence[str] = ()
    where: str | None = None
    keep: Sequence[str] = ()
    positions_only: bool = False
    max_bad: float = 0.5
    min_parallax_snr: float | None = None
    band: str | None = None
    declare_band: str | None = None
    any_range: bool = False
    repeats: str = "keep"

    def __post_init__(self) -> None:
        for name in ("band", "declare_band"):
            if (given := getattr(self, name)) is not None:
                # By its own name: A0 is A_0.
                object.__setattr__(self, name, parse_band(given).name)
        if self.repeats not in REPEATS:
            raise InputError(
                f"--repeats is {', '.join(REPEATS[:-1])} or {REPEATS[-1]}, not "
                f"{self.repeats!r}"
            )
        if not 0 <= self.max_bad <= 1:
            raise InputError(f"--max-bad is a fraction from 0 to 1, not {self.max_bad}")
        if self.min_parallax_snr is not None and not self.min_parallax_snr > 0:
            raise InputError(
                f"the least parallax S/N is positive, not {self.min_parallax_snr}"
            )
