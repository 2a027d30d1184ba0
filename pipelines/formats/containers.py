"""Arrays of FITS, HDF5, netCDF and zarr files by name, with their axes.

An array is read when its values are used. Checksums are not asked for, but a truncated
FITS file is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.wcs import WCS

from pipelines.base.errors import InputError

SPHERE = ("l", "b", "distance")
# Axes by their names in files, in lower case and without the projection.
_AXES = {name: name for name in ("x", "y", "z", *SPHERE)} | {
    "glon": "l",
    "glat": "b",
    "dist": "distance",
    "d": "distance",
}
Pairs = Iterator[tuple[str, "Variable"]]


class Variable(NamedTuple):
    """An array of an open file, its axes by name in the array's order, and attributes.

    ``backwards`` is true if the file states axes in the reverse order.
    """

    item: Any
    axes: dict[str, np.ndarray]
    attrs: dict[str, Any]
    backwards: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.item.shape)

    @property
    def values(self) -> np.ndarray:
        """The array, read at each use."""
        return np.asarray(self.item[...])

    @property
    def unit(self) -> str:
        """The unit as the file spells it; empty if it has none."""
        return text_of(self.attrs)


def text_of(attrs: dict[str, Any]) -> str:
    """Return the unit in attributes as the file spells it."""
    keys = ("BUNIT", "CUNIT", "UNIT", "units", "unit", "values_unit")
    found = (str(attrs[key]).strip() for key in keys if key in attrs)
    return next(filter(None, found), "")


@contextmanager
def opened_variables(path: Path) -> Iterator[dict[str, Variable]]:
    """Open a container, known by its first bytes, and yield its arrays of numbers.

    Raises `InputError` if it cannot be read, there or where values are used.
    """
    try:
        with ExitStack() as opened:
            if path.is_dir():
                found = _zarr_variables(path)
            else:
                with path.open("rb") as stream:
                    head = stream.read(8)
                if head == b"\x89HDF\r\n\x1a\n":
                    import h5py

                    found = _hdf5_variables(path, opened.enter_context(h5py.File(path)))
                elif head[:3] == b"CDF":
                    found = _netcdf_variables(path)
                else:
                    found = _fits_variables(path)
            yield {n: v for n, v in found if v.item.dtype.kind in "fiuV"}
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read: {reason}") from error


def _fits_variables(path: Path) -> Pairs:
    with (
        warnings.catch_warnings(record=True, action="always") as said,
        fits.open(path, memmap=True, lazy_load_hdus=False) as hdus,
    ):
        if cut := [w for w in said if "truncated" in str(w.message)]:
            raise InputError(f"{path} is damaged: {cut[0].message}")
        # Mapped arrays outlive the open file.
        pairs = (_of_unit(path, hdu, f"image {n}") for n, hdu in enumerate(hdus))
        found = [pair for each in pairs for pair in each]
    yield from found


def _of_unit(path: Path, hdu: Any, name: str) -> Pairs:
    """Yield an image, or the columns of a table."""
    if hdu.data is not None and hdu.header.get("XTENSION") == "BINTABLE":
        for column in hdu.data.names:
            yield column, Variable(np.asarray(hdu.data[column]), {}, {})
    elif hdu.data is not None:
        axes = {}
        if "ORDERING" in hdu.header and "NSIDE" in hdu.header:
            axes = {"pixel": np.arange(hdu.data.shape[-1])}
        elif hdu.data.ndim == 3:
            axes = _wcs_axes(path, hdu.header, hdu.data.shape[::-1])
        attrs = dict(hdu.header)
        yield hdu.name or name, Variable(hdu.data, axes, attrs, backwards=True)


def _wcs_axes(path: Path, header: Any, counts: Any) -> dict[str, np.ndarray]:
    """Return the axes of a cube's WCS in the array's order; none if it names none."""
    types = [str(header.get(f"CTYPE{number}", "")) for number in (1, 2, 3)]
    kinds = [kind.split("-")[0].strip().lower() for kind in types]
    if not all(kind in _AXES for kind in kinds):
        return {}
    wcs: Any = WCS(header)
    # Plate carrées go around the sky from any CRVAL.
    wcs.wcs.bounds_check(False, False)
    axes = {}
    for number, (kind, count) in enumerate(zip(kinds, counts)):
        # Along one axis at the first and the last pixels of the others.
        lines = np.repeat([[np.zeros(3)], [np.array(counts) - 1.0]], count, axis=1)
        lines[..., number] = np.arange(count)
        low, high = (wcs.wcs_pix2world(line, 0)[:, number] for line in lines)
        name, unit = _AXES[kind], wcs.wcs.cunit[number]
        if name == "l":
            low, high = (np.unwrap(a, period=360) for a in (low, high))
        if not np.allclose(low, high, rtol=1e-6, atol=1e-6 * np.ptp(low)):
            raise InputError(
                f"{path}: axis {kind} depends on the others (projection or rotation): "
                "expected a regular grid, such as GLON-CAR at GLAT = 0"
            )
        axes[name] = _converted(path, name, low, unit)
    return dict(reversed(axes.items()))


def _converted(path: Path, name: str, values: Any, unit: Any) -> np.ndarray:
    """Return centres of an axis in pc or deg."""
    wanted = u.deg if name in ("l", "b") else u.pc
    try:
        text: Any = u.Unit(unit)
        return np.asarray(values, dtype=np.float64) * text.to(wanted)
    except (ValueError, TypeError, u.UnitConversionError):
        raise InputError(
            f"{path}: the axis {name} has the unit {str(unit)!r}, expected one of "
            f"{'angle' if wanted == u.deg else 'length'}: state --origin and --step"
        ) from None


def _hdf5_variables(path: Path, file: Any) -> Pairs:
    import h5py

    held: dict[str, Any] = {}
    file.visititems(lambda name, item: held.update({name: item}))
    items = {}
    for name, item in held.items():
        if isinstance(item, h5py.Dataset) and item.ndim:
            # A dimension has the name of its coordinate, or a label.
            dims = [str(d[0].name).strip("/") if len(d) else d.label for d in item.dims]
            items[name] = item, dims, item.attrs
    return _labelled(path, items)


def _netcdf_variables(path: Path) -> Pairs:
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=False) as file:
        held: Any = file.variables
        items = {n: (v.data, v.dimensions, v._attributes) for n, v in held.items()}
    return _labelled(path, items)


def _zarr_variables(path: Path) -> Pairs:
    import zarr

    items = {}
    for name, item in zarr.open_group(str(path), mode="r").arrays():
        dims = getattr(item.metadata, "dimension_names", None)
        items[name] = item, dims or item.attrs.get("_ARRAY_DIMENSIONS", ()), item.attrs
    return _labelled(path, items)


def _labelled(path: Path, items: Mapping[str, tuple[Any, Iterable[str], Any]]) -> Pairs:
    """Yield variables with the axes that their dimensions and coordinates give.

    ``items`` are arrays, the names of their dimensions, and their attributes.
    """
    for name, (item, dims, attrs) in items.items():
        axes = {}
        for dim in dims if len(item.shape) == 3 else ():
            known = _AXES.get(str(dim).rsplit("/", 1)[-1].lower())
            if known is None or dim not in items:
                axes = {}
                break
            centres, _, about = items[dim]
            axes[known] = _converted(path, known, centres[...], text_of(_plain(about)))
        yield name, Variable(item, axes, _plain(attrs))


def _plain(attrs: Any) -> dict[str, Any]:
    """Return attributes with texts for bytes."""
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
