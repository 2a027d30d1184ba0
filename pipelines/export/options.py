"""What is to be exported, and where to: checked before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from pathlib import Path
from typing import Any

from pipelines.bands import Conversion, wanted_conversion
from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES
from pipelines.export.registry import EXPORTERS
from pipelines.formats.images import Field
from pipelines.maps.answers import Answers
from pipelines.storage.atomic import check_output

Range = tuple[float, float]
Targets = Mapping[str, Sequence[Path]]
_SPAN = re.compile(r"\s*([xyz])\s*=\s*([^:]*):([^:]*)")


def check_targets(targets: Targets, *, overwrite: bool) -> None:
    """Raise an `InputError` if a product cannot be written where it is to go."""
    paths = [path for each in targets.values() for path in each]
    for path in paths:
        check_output(path, overwrite=overwrite)
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError(
            f"two of {', '.join(f'--{name}' for name in targets)} name the same path: "
            "one would replace the other"
        )
    for name, each in targets.items():
        suffixes = EXPORTERS[name].suffixes
        wrong = [path for path in each if suffixes and path.suffix not in suffixes]
        if wrong:
            raise InputError(
                f"{wrong[0]}: expected a name for --{name} that ends in "
                f"{' or '.join(suffixes)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the products hold.

    Parameters
    ----------
    distances
        Of the HEALPix maps and images [pc].
    shell_edges
        Between shells [pc].
    nside
        Resolution of integrated extinctions, HEALPix maps and shells.
    field
        Of images (`pipelines.formats.images.Field`).
    ordering
        Of the pixels in HEALPix files: ``nested``, as unless given, or ``ring``.
    band, declare_band, curve, r_v
        The band to convert to, and by what (`pipelines.bands`); ``declare_band`` states
        the run's own where that is not known.
    fill, fill_beyond
        A map that continues this one, in its band, beyond its ``box`` (as unless given)
        or its ``stars``; of a cube it fills the cells that no sight line crosses.
    box, sphere
        Cut-outs of the density [pc].
    spacing
        Of the density's cells [pc]; those of the grid unless given.
    samples
        Posterior samples of the density that the zarr store holds, none unless given.
    """

    distances: Sequence[float] | None = None
    shell_edges: Sequence[float] | None = None
    nside: int | None = None
    field: Field | None = None
    ordering: str | None = None
    band: str | None = None
    declare_band: str | None = None
    curve: str | None = None
    r_v: float | None = None
    fill: Answers | None = None
    fill_beyond: str | None = None
    box: dict[str, Range] = with_default(default_factory=dict)
    sphere: float | None = None
    spacing: float | None = None
    samples: int | None = None

    def change(self, meta: dict[str, Any]) -> Conversion | None:
        """From the band of a run to the one that is wanted, if any is named."""
        return wanted_conversion(
            meta, self.band, self.declare_band, curve=self.curve, r_v=self.r_v
        )

    def check(self, targets: Targets) -> None:
        """Raise an `InputError` for an option that concerns none of the products."""
        for option in sorted({o for e in EXPORTERS.values() for o in e.options}):
            concerned = [n for n, e in EXPORTERS.items() if option in e.options]
            if getattr(self, option) and not any(targets.get(n) for n in concerned):
                raise InputError(
                    f"an output is missing for --{option.replace('_', '-')}: "
                    f"{' or '.join(f'--{name}' for name in concerned)}"
                )


def parse_box(text: str) -> dict[str, Range]:
    """Understand ``x=-500:500,z=:100``; an end that is left out is the map's.

    Raises
    ------
    InputError
        If it is not like this, or names an axis twice.
    """
    ranges: dict[str, Range] = {}
    try:
        for part in text.split(","):
            found = _SPAN.fullmatch(part)
            if found is None or found[1] in ranges:
                raise ValueError(part)
            low, high = found[2].strip(), found[3].strip()
            ranges[found[1]] = (float(low or "-inf"), float(high or "inf"))
    except ValueError:
        raise InputError(
            f"--box takes ranges in pc such as x=-500:500,y=-200:300, each of "
            f"{', '.join(AXES)} once at most; got {text!r}"
        ) from None
    return ranges
