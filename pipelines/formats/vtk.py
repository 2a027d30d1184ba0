"""A cube as VTK image data, ``.vti``, for ParaView and pyvista.

XML with raw appended arrays, little-endian, points at the cells' centres in parsecs
(VTK file formats, https://docs.vtk.org/en/latest/vtk_file_formats). VTK has one grid:
for nested cubes, points of the coarsest have the values of the finest, and the
provenance counts the `LEFT_OUT`: sums along rays are not integrals then.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.formats.citation import provenance_text
from pipelines.storage.atomic import atomic_file

_DATA, _END = b'<AppendedData encoding="raw">\n_', b"\n</AppendedData>\n</VTKFile>\n"
LEFT_OUT = "finer_grids_left_out"


def write_vti(
    path: str | os.PathLike[str], cube: Cube, *, overwrite: bool = False
) -> None:
    """Write every array of ``cube`` as float32 point data, with its provenance.

    The provenance, as JSON, and the unit are strings among the field data.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written.
    ValueError
        If the provenance is not JSON.
    """
    axes = (cube.x, cube.y, cube.z)
    arrays, meta = cube.arrays, cube.meta
    if cube.finer:
        z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
        points = np.stack([x, y, z], axis=-1)
        arrays = {name: cube.sample(name, points) for name in arrays}
        meta = {**meta, LEFT_OUT: len(cube.finer)}
    # x varies fastest.
    data = [np.ascontiguousarray(values, dtype="<f4") for values in arrays.values()]
    # Each array follows its length in bytes, a number of 8 bytes.
    offsets = np.cumsum([0, *(8 + values.nbytes for values in data)])
    described = "\n".join(
        f'<DataArray type="Float32" Name={quoteattr(name)} format="appended" '
        f'offset="{offset}"/>'
        for name, offset in zip(arrays, offsets)
    )
    size = " ".join(f"0 {len(axis) - 1}" for axis in axes)
    origin = " ".join(repr(float(axis[0])) for axis in axes)
    spacing = " ".join(repr(step) for step in cube.spacing)
    head = f"""<?xml version="1.0"?>
<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">
<ImageData WholeExtent="{size}" Origin="{origin}" Spacing="{spacing}">
<FieldData>
{_string("unit", cube.unit)}
{_string("provenance", provenance_text(meta))}
</FieldData>
<Piece Extent="{size}"><PointData Scalars={quoteattr(next(iter(arrays)))}>
{described}
</PointData></Piece>
</ImageData>
"""
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(head.encode() + _DATA)
        for values in data:
            file.write(values.nbytes.to_bytes(8, "little"))
            file.write(values.tobytes())
        file.write(_END)


def read_vti(path: str | os.PathLike[str]) -> Cube:
    """Read a cube by :func:`write_vti`.

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
        texts = {}
        for part in image.iterfind("FieldData/DataArray"):
            *codes, _ = map(int, (part.text or "").split())
            texts[part.get("Name")] = bytes(codes).decode()
        ends = image.attrib["WholeExtent"].split()[1::2]
        starts, steps = (image.attrib[name].split() for name in ("Origin", "Spacing"))
        x, y, z = (
            float(start) + float(step) * np.arange(int(end) + 1)
            for start, step, end in zip(starts, steps, ends, strict=True)
        )
        shape, arrays = (len(z), len(y), len(x)), {}
        for part in image.iterfind("Piece/PointData/DataArray"):
            place = int(part.attrib["offset"]) + 8
            values = np.frombuffer(data, "<f4", int(np.prod(shape)), place)
            arrays[part.attrib["Name"]] = values.reshape(shape).astype(np.float32)
        meta = json.loads(texts["provenance"])
        return Cube(x=x, y=y, z=z, arrays=arrays, unit=texts["unit"], meta=meta)
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:
        raise InputError(
            f"{source} is not a VTK image by `dustmap export --vti`, or is damaged: "
            f"{error}"
        ) from error


def _string(name: str, text: str) -> str:
    """Write a string among the field data: its bytes as numbers, and a zero."""
    codes = " ".join(str(code) for code in (*text.encode(), 0))
    return (
        f'<DataArray type="String" Name="{name}" NumberOfTuples="1" format="ascii">'
        f"{codes}</DataArray>"
    )
