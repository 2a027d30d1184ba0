"""A map compared with stars or with another map."""

from pipelines.compare.comparison import Comparison, write_comparison
from pipelines.compare.dispatch import compare
from pipelines.compare.maps import compare_map
from pipelines.compare.stars import compare_stars

__all__ = [
    "Comparison",
    "compare",
    "compare_map",
    "compare_stars",
    "write_comparison",
]
