"""A cube as VTK image data, ``.vti``, which ParaView and pyvista open.

XML with raw appended arrays, little-endian, points at the cells' centres in parsecs
(VTK file formats, https://docs.vtk.org/en/latest/vtk_file_formats). VTK has one grid:
of nested cubes the values at the points of the coarsest are those of the finest, and
its provenance counts the `LEFT_OUT`: the sum along a ray is then no integral.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, Cube
from pipelines.formats.citation import provenance_text
from pipelines.storage.atomic import atomic_file

_DATA, _END = b'<AppendedData encoding="raw">\n_', b"\n</AppendedData>\n</VTKFile>\n"
_ABOUT, _UNIT = "provenance", "unit"
LEFT_OUT = "finer_grids_left_out"


def write_vti(
    path: str | os.PathLike[str], cube: Cube, *, overwrite: bool = False
) -> None:
    """Write every array of ``cube`` as float32 point data, and whence it is.

    The provenance, as JSON, and the unit are strings among the field data.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written.
    ValueError
        If the provenance is not JSON.
    """
    arrays = {name: _at_points(cube, name) for name in cube.arrays}
    meta = {**cube.meta, LEFT_OUT: len(cube.finer)} if cube.finer else cube.meta
    size = " ".join(f"0 {len(axis) - 1}" for axis in (cube.x, cube.y, cube.z))
    origin = " ".join(repr(float(axis[0])) for axis in (cube.x, cube.y, cube.z))
    spacing = " ".join(repr(step) for step in cube.spacing)
    each, offset = [], 0
    for name, array in arrays.items():
        each.append(
            f'<DataArray type="Float32" Name={quoteattr(name)} format="appended" '
            f'offset="{offset}"/>'
        )
        offset += 8 + array.nbytes
    head = f"""<?xml version="1.0"?>
<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">
<ImageData WholeExtent="{size}" Origin="{origin}" Spacing="{spacing}">
<FieldData>
{_text(_UNIT, cube.unit)}
{_text(_ABOUT, provenance_text(meta))}
</FieldData>
<Piece Extent="{size}"><PointData Scalars={quoteattr(next(iter(arrays)))}>
{chr(10).join(each)}
</PointData></Piece>
</ImageData>
"""
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        open(temporary, "wb") as f,
    ):
        f.write(head.encode() + _DATA)
        for array in arrays.values():
            f.write(np.uint64(array.nbytes).astype("<u8").tobytes())
            f.write(array.tobytes())
        f.write(_END)


def read_vti(path: str | os.PathLike[str]) -> Cube:
    """Read a cube that :func:`write_vti` wrote.

    Raises
    ------
    InputError
        If the file is absent, truncated or not one of this program's.
    """
    source = Path(path)
    try:
        head, _, data = source.read_bytes().partition(_DATA)
        if not data.endswith(_END):
            raise ValueError("its end is missing")
        image = ElementTree.fromstring(head + b"</VTKFile>")[0]
        texts = {
            str(part.get("Name")): bytes(
                map(int, (part.text or "").split()[:-1])
            ).decode()
            for part in image.iterfind("FieldData/DataArray")
        }
        axes = _axes(image)
        shape = tuple(len(axes[name]) for name in reversed(AXES))
        arrays = {}
        for part in image.iterfind("Piece/PointData/DataArray"):
            place = int(part.attrib["offset"]) + 8
            values = np.frombuffer(data, "<f4", int(np.prod(shape)), place)
            arrays[part.attrib["Name"]] = values.reshape(shape).astype(np.float32)
        return Cube(
            **axes, arrays=arrays, unit=texts[_UNIT], meta=json.loads(texts[_ABOUT])
        )
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:
        raise InputError(
            f"{source} is no VTK image that `dustmap export --vti` wrote, or is "
            f"damaged: {error}"
        ) from error


def _text(name: str, text: str) -> str:
    """A string among the field data: its bytes as numbers, and a zero."""
    codes = " ".join(str(code) for code in (*text.encode(), 0))
    return (
        f'<DataArray type="String" Name="{name}" NumberOfTuples="1" format="ascii">'
        f"{codes}</DataArray>"
    )


def _axes(image: ElementTree.Element) -> dict[str, Any]:
    """Coordinates [pc] by axis."""
    ends = [int(end) for end in image.attrib["WholeExtent"].split()[1::2]]
    starts, steps = (map(float, image.attrib[n].split()) for n in ("Origin", "Spacing"))
    return {
        name: start + step * np.arange(end + 1)
        for name, start, step, end in zip(AXES, starts, steps, ends, strict=True)
    }


def _at_points(cube: Cube, name: str) -> np.ndarray:
    """An array on the cube's own grid, x fastest, with the finest values there are."""
    array = cube.arrays[name]
    if cube.finer:
        z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
        array = cube.sample(name, np.stack([x, y, z], axis=-1))
    return np.ascontiguousarray(array, dtype="<f4")
