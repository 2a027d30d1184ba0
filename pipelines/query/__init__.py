"""Queries of a map: `SkyCoord` in, `Quantity` out.

>>> from pipelines.query import open_map                       # doctest: +SKIP
>>> dust = open_map("map.zarr")                                # doctest: +SKIP
>>> dust.query(coords, integrated=True)                        # doctest: +SKIP
>>> dust.distance_at(coords, 0.5)                              # doctest: +SKIP

`pipelines.query.dustmaps_map.DustmapQuery` is the same as a map of the package
``dustmaps``.
"""

from pipelines.query.map import DustMap, open_map

__all__ = ["DustMap", "open_map"]
