"""A map compared with other data: stars, sight lines, clouds, other maps."""

from pipelines.compare.clouds import compare_clouds
from pipelines.compare.comparison import Comparison, write_comparison
from pipelines.compare.dispatch import compare
from pipelines.compare.lines import compare_lines
from pipelines.compare.maps import compare_map
from pipelines.compare.stars import compare_stars

__all__ = [
    "Comparison",
    "compare",
    "compare_clouds",
    "compare_lines",
    "compare_map",
    "compare_stars",
    "write_comparison",
]
