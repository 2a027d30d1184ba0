"""A cube as VTK image data, ``.vti``, for ParaView and pyvista.

XML with raw appended arrays, little-endian, points at the cells' centres in parsecs
(VTK file formats, https://docs.vtk.org/en/latest/vtk_file_formats). VTK has one grid:
for nested cubes, points of the coarsest have the values of the finest.
"""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import numpy as np

from pipelines.cubes.cube import Cube
from pipelines.formats.citation import provenance_text
from pipelines.storage.atomic import AnyPath, atomic_file


def write_vti(path: AnyPath, cube: Cube, *, overwrite: bool = False) -> None:
    """Write every array of ``cube`` as float32 point data, with its provenance.

    The provenance, as JSON, and the unit are strings among the field data.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or cannot be
    written; `ValueError` if the provenance is not JSON.
    """
    axes = (cube.x, cube.y, cube.z)
    arrays, meta = cube.arrays, cube.meta
    if cube.finer:
        arrays = {name: cube.sample(name, cube.points) for name in arrays}
        meta = {**meta, "finer_grids_left_out": len(cube.finer)}
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
<AppendedData encoding="raw">
_"""
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(head.encode())
        for values in data:
            file.write(values.nbytes.to_bytes(8, "little"))
            file.write(values.tobytes())
        file.write(b"\n</AppendedData>\n</VTKFile>\n")


def _string(name: str, text: str) -> str:
    """Write a string among the field data: its bytes as numbers, and a zero."""
    codes = " ".join(str(code) for code in (*text.encode(), 0))
    return (
        f'<DataArray type="String" Name="{name}" NumberOfTuples="1" format="ascii">'
        f"{codes}</DataArray>"
    )
