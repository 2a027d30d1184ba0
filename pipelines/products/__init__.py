"""What a run is turned into: density, integrated extinction, sky maps, sight lines."""

from pipelines.products.density import columns, map_and_columns, map_cube
from pipelines.products.integrated import integrated, sky_maps
from pipelines.products.provenance import provenance
from pipelines.products.reach import default_distances, default_nside
from pipelines.products.sightlines import default_directions, lines_of_sight

__all__ = [
    "columns",
    "default_directions",
    "default_distances",
    "default_nside",
    "integrated",
    "lines_of_sight",
    "map_and_columns",
    "map_cube",
    "provenance",
    "sky_maps",
]
