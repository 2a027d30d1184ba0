"""The products of ``dustmap export``, and the options of their content.

This module imports nothing heavy: the command line derives its options from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipelines.base.errors import InputError
from pipelines.storage.atomic import check_output

if TYPE_CHECKING:
    from pipelines.formats.images import Field

Range = tuple[float, float]
Targets = Mapping[str, Sequence[Path]]


class Exporter(NamedTuple):
    """One product of ``dustmap export``.

    ``help`` is the help text of its option, ``options`` are the relevant
    `ExportOptions`; its name must end in one of ``suffixes``, if any. ``usual`` is the
    default name in the run folder.
    """

    help: str
    options: tuple[str, ...]
    usual: str = ""
    suffixes: tuple[str, ...] = ()


_CUT = ("box", "sphere", "spacing")
EXPORTERS = {
    "zarr": Exporter(
        "The map store or a part of it, as zarr v3.",
        _CUT,
    ),
    "fits": Exporter("Density, and mean extinctions, as FITS.", _CUT, usual="map.fits"),
    "healpix": Exporter(
        "Integrated extinction, HEALPix.",
        ("distances", "nside", "ordering"),
        usual="map.healpix.fits",
    ),
    "image": Exporter(
        "Integrated extinction on pixels of a WCS: DS9, Aladin.",
        ("distances", "field"),
        suffixes=(".fits", ".fit"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The content of the products; ``None`` stands for defaults."""

    distances: Sequence[float] | None = None
    """Distances of the HEALPix maps and images [pc]."""
    nside: int | None = None
    """Resolution of HEALPix maps, by default the store's."""
    field: Field | None = None
    """Field of images on the sky."""
    ordering: str | None = None
    """Order of the pixels in HEALPix files: ``nested`` (default) or ``ring``."""
    band: str | None = None
    """Band to convert to (`pipelines.bands`)."""
    declare_band: str | None = None
    """The run's own band, if unknown."""
    curve: str | None = None
    """Extinction curve of the conversion."""
    r_v: float | None = None
    """R_V of the conversion."""
    at_av: float | None = None
    """A_V at which the conversion holds [mag]."""
    box: dict[str, Range] = with_default(default_factory=dict)
    """Ranges of ``x y z`` [pc] of the density."""
    sphere: float | None = None
    """Largest distance of the density from the Sun [pc]."""
    spacing: float | None = None
    """Size of the density's cells [pc], by default the grid's."""

    def check(self, targets: Targets, *, overwrite: bool) -> None:
        """Check products and paths before any computation.

        Raises `InputError` if an option concerns none of the products or is no length,
        two of them have one path, or a path cannot be written or has a wrong suffix.
        """
        for option in sorted({o for e in EXPORTERS.values() for o in e.options}):
            concerned = [n for n, e in EXPORTERS.items() if option in e.options]
            given = getattr(self, option) not in (None, {})
            if given and not any(targets.get(n) for n in concerned):
                raise InputError(
                    f"an output is missing for --{option.replace('_', '-')}: "
                    f"{' or '.join(f'--{name}' for name in concerned)}"
                )
        for option in ("sphere", "spacing"):
            if (size := getattr(self, option)) is not None and not size > 0:
                raise InputError(f"--{option} is a length above 0 pc, got {size:g}")
        named = [(name, path) for name, each in targets.items() for path in each]
        for _, path in named:
            check_output(path, overwrite=overwrite)
        if len({path.resolve() for _, path in named}) < len(named):
            raise InputError(
                f"two of {', '.join(f'--{name}' for name in targets)} name the same "
                "path: one would replace the other"
            )
        for name, path in named:
            suffixes = EXPORTERS[name].suffixes
            if suffixes and path.suffix not in suffixes:
                raise InputError(
                    f"{path}: expected a name for --{name} that ends in "
                    f"{' or '.join(suffixes)}"
                )


def parse_box(text: str) -> dict[str, Range]:
    """Parse ``x=-500:500,z=:100``; omitted ends are the map's.

    Raises `InputError` if the form differs, or an axis occurs twice.
    """
    ranges: dict[str, Range] = {}
    try:
        for part in text.split(","):
            found = re.fullmatch(r"\s*([xyz])\s*=\s*([^:]*):([^:]*)", part)
            if found is None or found[1] in ranges:
                raise ValueError(part)
            low, high = found[2].strip(), found[3].strip()
            ranges[found[1]] = (float(low or "-inf"), float(high or "inf"))
    except ValueError:
        raise InputError(
            "--box takes ranges in pc such as x=-500:500,y=-200:300, each of x, y, z "
            f"once at most; got {text!r}"
        ) from None
    return ranges
