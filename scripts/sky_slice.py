#!/usr/bin/env python3
"""Draw a sky slice of an exported map.

MAP is a zarr store or a FITS cube, of which the density on the sphere at --distance
is drawn (interpolated between cells, grey outside the map), or HEALPix maps, of which
the cumulative extinction out to --distance is drawn (interpolated between the
distances of the file, zero at the Sun).
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import healpy
import numpy as np

from pipelines.errors import InputError
from pipelines.export.cube import Cube, SkyMaps
from pipelines.export.fits import read_fits
from pipelines.export.hdus import open_checked
from pipelines.export.healpix import read_healpix
from pipelines.export.zarr import read_zarr
from pipelines.figures import save_figure, sky_slice
from pipelines.figures.sky import Sky, healpix_sky
from pipelines.figures.style import density_unit, length_text

# Fine enough to know a map's reach and range of values.
_NSIDE = 32


@click.command(help=__doc__)
@click.argument("source", metavar="MAP", type=click.Path(path_type=Path))
@click.option(
    "--distance",
    required=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Distance from the Sun [pc].",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="PNG to write (replaced if it exists); by default named after MAP and the "
    "distance, in the current folder.",
)
@click.option(
    "--nside",
    type=click.IntRange(min=1, max=4096),
    help="HEALPix resolution of the slice, a power of two; by default as fine as the "
    "figure for a cube and as the file for HEALPix maps.",
)
def main(source: Path, distance: float, output: Path | None, nside: int | None) -> None:
    """Turn the library's errors into one line and an exit status."""
    try:
        written = draw(source, distance, output, nside)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"failed: {error}", err=True)
        sys.exit(1)
    click.echo(f"wrote {written}")


def draw(source: Path, distance: float, output: Path | None, nside: int | None) -> Path:
    """Draw the slice and return where it is."""
    if not np.isfinite(distance):
        raise InputError(f"--distance must be a number of parsecs, got {distance}")
    if nside is not None and nside & (nside - 1):
        raise InputError(f"--nside must be a power of two, got {nside}")
    exported = read_map(source)
    if isinstance(exported, Cube):
        density, quantity = density_at(exported, distance), "density"
        pixels = density(*_directions(nside or _NSIDE))
        factor, unit = density_unit(pixels, exported.unit)
        label = f"density {unit}"
        title = f"dust density at {length_text(distance)}"
        if nside is None:
            values = _times(density, factor)
        else:
            values = healpix_sky(pixels * factor)
    else:
        pixels, quantity = extinction_to(exported, distance), "extinction"
        label, title = "extinction [mag]", f"extinction out to {length_text(distance)}"
        values = healpix_sky(pixels if nside is None else _regrade(pixels, nside))
    _require_some(values, source, distance)
    place = output or Path(f"{source.resolve().stem}_{quantity}_{distance:g}pc.png")
    save_figure(sky_slice(values, title=title, label=label), place)
    return place


def read_map(source: Path) -> Cube | SkyMaps:
    """Read an export of any format."""
    if source.is_dir():
        return read_zarr(source)
    with open_checked(source) as hdus:
        is_table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
    return read_healpix(source) if is_table else read_fits(source)


def density_at(cube: Cube, distance: float) -> Sky:
    """See the density on the sphere of radius ``distance`` [pc] by direction."""
    name = "mean" if "mean" in cube.arrays else "density"
    if name not in cube.arrays:
        raise InputError(
            f"the map holds {sorted(cube.arrays)}; expected an array mean or density"
        )

    def values(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        return cube.sample(name, distance * healpy.ang2vec(l, b, lonlat=True))

    return values


def extinction_to(maps: SkyMaps, distance: float) -> np.ndarray:
    """Interpolate the mean cumulative extinction [mag] to ``distance`` [pc]."""
    last = float(maps.distances[-1])
    if distance > last:
        raise InputError(
            f"the maps end at {last:g} pc: choose a --distance up to that, "
            f"got {distance:g} pc"
        )
    upper = int(np.searchsorted(maps.distances, distance))
    far = maps.distances[upper]
    near, below = 0.0, np.zeros_like(maps.mean[0])
    if upper:
        near, below = maps.distances[upper - 1], maps.mean[upper - 1]
    weight = (distance - near) / (far - near)
    if weight == 1.0:
        return maps.mean[upper]
    return below + weight * (maps.mean[upper] - below)


def _times(sky: Sky, factor: float) -> Sky:
    return lambda l, b: factor * sky(l, b)  # noqa: E741


def _directions(nside: int) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.arange(healpy.nside2npix(nside))
    return healpy.pix2ang(nside, pixels, nest=True, lonlat=True)


def _regrade(pixels: np.ndarray, nside: int) -> np.ndarray:
    filled = np.where(np.isnan(pixels), healpy.UNSEEN, pixels).astype(np.float64)
    graded = healpy.ud_grade(filled, nside, order_in="NESTED", order_out="NESTED")
    return np.where(graded == healpy.UNSEEN, np.nan, graded)


def _require_some(values: Sky, source: Path, distance: float) -> None:
    if np.isnan(values(*_directions(_NSIDE))).all():
        raise InputError(
            f"{source} holds nothing at {distance:g} pc: choose a --distance inside it"
        )


if __name__ == "__main__":
    main()
