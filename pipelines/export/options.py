"""The products that ``dustmap export`` writes, and the options of their content.

Nothing heavy is imported here: the command line makes its options of these.
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
    from pipelines.maps.answers import Answers

Range = tuple[float, float]
Targets = Mapping[str, Sequence[Path]]
_SPAN = re.compile(r"\s*([xyz])\s*=\s*([^:]*):([^:]*)")


class Exporter(NamedTuple):
    """One product that ``dustmap export`` writes.

    ``help`` is that of its option, ``options`` are those of `ExportOptions` that
    concern it; its name ends in one of ``suffixes``, if there are any. Where no product
    is chosen, ``usual`` is written into the folder of the run.
    """

    help: str
    options: tuple[str, ...]
    usual: str = ""
    suffixes: tuple[str, ...] = ()


_CUT = ("box", "sphere", "spacing")
EXPORTERS = {
    "zarr": Exporter(
        "Density and integrated extinction as zarr v3.",
        (*_CUT, "samples"),
        usual="map.zarr",
    ),
    "fits": Exporter("Density cube as FITS.", (*_CUT, "fill"), usual="map.fits"),
    "healpix": Exporter(
        "Integrated extinction, HEALPix.",
        ("distances", "ordering", "fill"),
        usual="map.healpix.fits",
    ),
    "shells": Exporter("Density in HEALPix shells.", ("shell_edges", "ordering")),
    "image": Exporter(
        "Integrated extinction on pixels of a WCS: DS9, Aladin.",
        ("distances", "field", "fill"),
        suffixes=(".fits", ".fit"),
    ),
    "vti": Exporter(
        "Density for ParaView and pyvista.", (*_CUT, "fill"), suffixes=(".vti",)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The content of the products; what is ``None`` is the usual."""

    distances: Sequence[float] | None = None
    """Distances of the HEALPix maps and images [pc]."""
    shell_edges: Sequence[float] | None = None
    """Distances between shells [pc]."""
    nside: int | None = None
    """Resolution of integrated extinctions, HEALPix maps and shells."""
    field: Field | None = None
    """Part of the sky on images."""
    ordering: str | None = None
    """Order of the pixels in HEALPix files: ``nested``, the usual, or ``ring``."""
    band: str | None = None
    """Band to convert to (`pipelines.bands`)."""
    declare_band: str | None = None
    """The run's own band, where it is not known."""
    curve: str | None = None
    """Extinction curve of the conversion."""
    r_v: float | None = None
    """R_V of the conversion."""
    fill: Answers | None = None
    """Map, in the band of the run, that continues it; of a cube it fills the cells that
    no sight line crosses."""
    fill_beyond: str | None = None
    """Where it continues: beyond the ``box``, the usual, or the ``stars``."""
    box: dict[str, Range] = with_default(default_factory=dict)
    """Ranges of ``x y z`` [pc] that are cut out of the density."""
    sphere: float | None = None
    """Distance from the Sun [pc] beyond which the density is cut off."""
    spacing: float | None = None
    """Size of the density's cells [pc]; the usual are those of the grid."""
    samples: int | None = None
    """Number of posterior samples of the density in the zarr store."""

    def check(self, targets: Targets, *, overwrite: bool) -> None:
        """Check products and paths before anything is computed.

        Raises
        ------
        InputError
            If an option concerns none of the products, two of them have one path, or a
            path cannot be written or has another ending than the product's.
        """
        for option in sorted({o for e in EXPORTERS.values() for o in e.options}):
            concerned = [n for n, e in EXPORTERS.items() if option in e.options]
            if getattr(self, option) and not any(targets.get(n) for n in concerned):
                raise InputError(
                    f"an output is missing for --{option.replace('_', '-')}: "
                    f"{' or '.join(f'--{name}' for name in concerned)}"
                )
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
            "--box takes ranges in pc such as x=-500:500,y=-200:300, each of x, y, z "
            f"once at most; got {text!r}"
        ) from None
    return ranges
