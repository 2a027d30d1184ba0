"""A cube as VTK image data, ``.vti``, which ParaView and pyvista open.

XML with raw appended arrays, little-endian, points at the cells' centres in parsecs
(VTK file formats, https://docs.vtk.org/en/latest/vtk_file_formats). VTK has one grid:
of nested cubes the values at the points of the coarsest are those of the finest.
"""

from __future__ import annotations

import os
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from pipelines.formats.hdus import provenance_text
from pipelines.maps.cube import Cube
from pipelines.storage.atomic import atomic_file


def write_vti(
    path: str | os.PathLike[str], cube: Cube, *, overwrite: bool = False
) -> None:
    """Write every array of ``cube`` as float32 point data.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or cannot be written.
    ValueError
        If the provenance is not JSON.
    """
    arrays = {name: _at_points(cube, name) for name in cube.arrays}
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
    about = f"{cube.unit}; positions in pc; {provenance_text(cube.meta)}"
    head = f"""<?xml version="1.0"?>
<!-- {escape(about).replace("--", "- -")} -->
<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">
<ImageData WholeExtent="{size}" Origin="{origin}" Spacing="{spacing}">
<Piece Extent="{size}"><PointData Scalars={quoteattr(next(iter(arrays)))}>
{chr(10).join(each)}
</PointData></Piece>
</ImageData>
<AppendedData encoding="raw">
_"""
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        open(temporary, "wb") as f,
    ):
        f.write(head.encode("ascii", "xmlcharrefreplace"))
        for array in arrays.values():
            f.write(np.uint64(array.nbytes).astype("<u8").tobytes())
            f.write(array.tobytes())
        f.write(b"\n</AppendedData>\n</VTKFile>\n")


def _at_points(cube: Cube, name: str) -> np.ndarray:
    """An array on the cube's own grid, x fastest, with the finest values there are."""
    array = cube.arrays[name]
    if cube.finer:
        z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
        array = cube.sample(name, np.stack([x, y, z], axis=-1))
    return np.ascontiguousarray(array, dtype="<f4")
