"""A map asked at coordinates: `SkyCoord` in, `Quantity` out.

>>> from pipelines.query import open_map                       # doctest: +SKIP
>>> dust = open_map("map.zarr")                                # doctest: +SKIP
>>> dust.query(coords, integrated=True)                        # doctest: +SKIP
>>> dust.distance_at(coords, 0.5)                              # doctest: +SKIP

`pipelines.query.dustmaps_map.DustmapQuery` is the same as a map of the package
``dustmaps``.
"""

from pipelines.query.beams import Beam, BeamAverage
from pipelines.query.crossing import CROSSING_FLAGS, Crossing
from pipelines.query.map import FLAGS, DustMap
from pipelines.query.opening import open_map
from pipelines.query.question import MODES

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
