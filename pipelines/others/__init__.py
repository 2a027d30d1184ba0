"""Maps of others: one face for runs, cubes of any format and the package dustmaps."""

from pipelines.others.maps import (
    BEYOND,
    NOTHING,
    OtherMap,
    cube_map,
    predicted_at,
    queried_map,
    read_npz,
    run_map,
)
from pipelines.others.opening import PACKAGE, open_cube_of, open_other, open_package

__all__ = [
    "BEYOND",
    "NOTHING",
    "PACKAGE",
    "OtherMap",
    "cube_map",
    "open_cube_of",
    "open_other",
    "open_package",
    "predicted_at",
    "queried_map",
    "read_npz",
    "run_map",
]
