"""What a run is turned into: density, integrated extinction, sky maps, sight lines."""

from pipelines.products.density import map_cube
from pipelines.products.integrated import integrated
from pipelines.products.provenance import provenance
from pipelines.products.reach import default_distances, default_nside
from pipelines.products.sightlines import default_directions, lines_of_sight
from pipelines.products.sky import sky_maps

__all__ = [
    "default_directions",
    "default_distances",
    "default_nside",
    "integrated",
    "lines_of_sight",
    "map_cube",
    "provenance",
    "sky_maps",
]
