"""Queries of a map: `SkyCoord` in, `Quantity` out.

>>> from pipelines.query import open_map                       # doctest: +SKIP
>>> dust = open_map("map.zarr")                                # doctest: +SKIP
>>> dust.query(coords, integrated=True)                        # doctest: +SKIP
>>> dust.distance_at(coords, 0.5)                              # doctest: +SKIP

`pipelines.query.dustmaps_map.DustmapQuery` is the same as a map of the package
``dustmaps``.
"""

from pipelines.maps.rays import CROSSING_FLAGS
from pipelines.query.beams import Beam, BeamAverage
from pipelines.query.map import FLAGS, MODES, Crossing, DustMap, open_map

__all__ = [
    "CROSSING_FLAGS",
    "FLAGS",
    "MODES",
    "Beam",
    "BeamAverage",
    "Crossing",
    "DustMap",
    "open_map",
]
