"""What should be known of an answer before it is used."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipelines.query.places import Places

FLAGS = np.dtype(
    [
        ("inside", "?"),
        ("extrapolated", "?"),
        ("unseen", "?"),
        ("no_distance", "?"),
        ("to_edge", "?"),
    ]
)
"""Fields of the flags of a query.

``inside``: the place is in the map, and only then there is a value. ``unseen``:
no star looks through the very cell. ``extrapolated``: nor through what lies behind it
on the sight line, so that the map goes on with the prior.
``no_distance``: the row's distance is missing. ``to_edge``: the distance was infinite,
and the value is that at the edge of the map.
"""


class Seen(Protocol):
    """What knows which cells stars have seen."""

    def unseen(self, places: Places) -> np.ndarray:
        """Whether no sight line crosses the cell of a place in the box."""
        ...

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        ...


def flags_of(
    seen: Seen, asked: Places, reached: Places, inside: np.ndarray
) -> np.ndarray:
    """Flags, shape ``(n,)``; ``asked`` are the places as they came, ``reached`` those
    with distances that end in the map."""
    flags = np.zeros(len(asked), dtype=FLAGS)
    flags["inside"] = inside
    flags["no_distance"] = np.isnan(asked.distance)
    flags["to_edge"] = np.isposinf(asked.distance) & inside
    within = reached.select(inside)
    unseen = seen.unseen(within)
    flags["unseen"][inside] = unseen
    # What is known of a pixel's ray is no news of a cell that is known itself.
    beyond = within.distance > seen.last_star(within)
    flags["extrapolated"][inside] = unseen & beyond
    return flags
