"""The products that ``dustmap export`` writes: a line for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_WRITERS = "pipelines.export.exporters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One product.

    Parameters
    ----------
    write
        ``module:function``, imported when it is needed: ``write(products, path, *,
        overwrite)`` of `pipelines.export.exporters.RunProducts`.
    help
        Of its option.
    usual
        Files in the folder of a run where no product is chosen.
    options
        Those of `pipelines.export.options.ExportOptions` that concern it alone.
    suffixes
        Endings that its name may have; any if empty.
    """

    write: str
    help: str
    usual: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()


EXPORTERS = {
    "zarr": Exporter(
        write=f"{_WRITERS}:zarr",
        help="Density and integrated extinction as zarr v3.",
        usual=("map.zarr",),
        options=("box", "sphere", "spacing", "samples"),
    ),
    "fits": Exporter(
        write=f"{_WRITERS}:fits",
        help="Density cube as FITS.",
        usual=("map.fits",),
        options=("box", "sphere", "spacing", "fill"),
    ),
    "healpix": Exporter(
        write=f"{_WRITERS}:healpix",
        help="Integrated extinction, HEALPix.",
        usual=("map.healpix.fits",),
        options=("distances", "ordering", "fill"),
    ),
    "shells": Exporter(
        write=f"{_WRITERS}:shells",
        help="Density in HEALPix shells.",
        options=("shell_edges", "ordering"),
    ),
    "image": Exporter(
        write=f"{_WRITERS}:image",
        help="Integrated extinction on pixels of a WCS: DS9, Aladin.",
        options=("distances", "field", "fill"),
        suffixes=(".fits", ".fit"),
    ),
    "vti": Exporter(
        write=f"{_WRITERS}:vti",
        help="Density for ParaView and pyvista.",
        options=("box", "sphere", "spacing"),
        suffixes=(".vti",),
    ),
}


def usual_targets(run: Path) -> dict[str, list[Path]]:
    """The usual products, in the folder of a run."""
    return {name: [run / file for file in e.usual] for name, e in EXPORTERS.items()}
