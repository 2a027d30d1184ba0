"""HEALPix pixels in NESTED order: where a direction lies, and between which centres.

The part of the package healpy that queries need, whose import takes longer than a
query: `healpy.ang2pix` and `healpy.get_interp_weights` with ``nest=True, lonlat=True``.
The formulae are those of Gorski et al. (2005, ApJ 622, 759); nside is a power of two.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int


def nside_of(pixels: int) -> int | None:
    """Return the nside of a map of so many pixels; ``None`` if there is none."""
    nside = math.isqrt(pixels // 12)
    is_power = nside > 0 and nside & (nside - 1) == 0
    return nside if is_power and 12 * nside**2 == pixels else None


def pixel_directions(nside: int) -> Float[np.ndarray, "n 3"]:
    """Return unit vectors to the centres of all pixels."""
    import healpy

    return np.stack(healpy.pix2vec(nside, np.arange(12 * nside**2), nest=True), axis=-1)


def pixel_of(
    nside: int, lon: Float[np.ndarray, " n"], lat: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Return the pixel of each direction [deg]."""
    return _pixel(nside, *_angles(lon, lat))


def weights_around(
    nside: int, lon: Float[np.ndarray, " n"], lat: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, "4 n"], Float[np.ndarray, "4 n"]]:
    """Return four pixels around each direction [deg], and their bilinear weights.

    They are two neighbours on the ring of pixels above, and two on that below. At the
    poles they are all four pixels of one ring, whose average is the value at the pole.
    Weights of unknown directions (NaN) are NaN.
    """
    theta, phi = _angles(lon, lat)
    z = np.nan_to_num(np.cos(theta))
    cap = (nside * np.sqrt(3 * (1 - np.abs(z)))).astype(np.int64)
    belt = (nside * (2 - 1.5 * z)).astype(np.int64)
    above = np.where(z > 0, cap, 4 * nside - cap - 1)
    above = np.where(np.abs(z) <= 2 / 3, belt, above)
    pixels, weights, (start, end) = zip(
        *(_on_ring(nside, above, phi), _on_ring(nside, above + 1, phi))
    )
    share = (theta - start) / (end - start)
    north, south = (1 - share) * weights[0], share * weights[1]
    # The average at a pole is that of the pairs on both sides of it.
    south = south + np.where(above == 0, (1 - share) / 4, 0.0)
    north = north + np.where(above == 4 * nside - 1, share / 4, 0.0)
    return np.concatenate(pixels), np.concatenate([north, south])


def _angles(lon: np.ndarray, lat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return colatitude and longitude in [0, 2π) [rad]."""
    return np.pi / 2 - np.radians(lat), np.radians(lon) % (2 * np.pi)


def _on_ring(
    nside: int, ring: np.ndarray, phi: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two neighbours on rings, ``(2, n)``, their weights, and colatitudes.

    Rings are counted from 1 in the north. Before the first and after the last is a
    pole, with the pair of pixels opposite on the ring around it.
    """
    beyond = (ring < 1) | (ring > 4 * nside - 1)
    ring = np.clip(ring, 1, 4 * nside - 1)
    nearer = np.minimum(ring, 4 * nside - ring)
    count = 4 * np.minimum(nearer, nside)
    # Distance from the pole in the caps, where each ring has four pixels more.
    far = nearer**2 / (3 * nside**2)
    theta = np.where(
        nearer < nside,
        np.arctan2(np.sqrt(far * (2 - far)), 1 - far),
        np.arccos(np.minimum((2 * nside - nearer) / (1.5 * nside), 1.0)),
    )
    theta = np.where(ring > 2 * nside, np.pi - theta, theta)
    shift = np.where((nearer < nside) | ((ring - nside) % 2 == 0), 0.5, 0.0)
    place = phi / (2 * np.pi) * count - shift
    first = np.floor(place)
    number = first + np.array([[0], [1]]) + 2 * beyond
    centre = ((number + shift) % count) * (2 * np.pi / count)
    share = place - first
    weights = np.where(beyond, 0.25, [1 - share, share])
    pole = np.where(ring > 2 * nside, np.pi, 0.0)
    pixels = _pixel(nside, np.stack([theta, theta]), centre)
    return pixels, weights, np.where(beyond, pole, theta)


def _pixel(nside: int, theta: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Return the pixel of colatitudes and longitudes in [0, 2π) [rad]."""
    z, turn = (np.nan_to_num(x) for x in (np.cos(theta), phi / (np.pi / 2)))
    # Lines of the grid that rise and fall past the direction: in the belt, ...
    falling, rising = (
        np.floor(nside * (0.5 + turn + sign * 0.75 * z)).astype(np.int64)
        for sign in (-1, 1)
    )
    one, other = falling // nside, rising // nside
    belt = np.where(one == other, one | 4, np.where(one < other, one, other + 8))
    x, y = rising % nside, nside - 1 - falling % nside
    # ... and in the polar caps.
    quarter = np.minimum(turn.astype(np.int64), 3)
    wide = nside * np.nan_to_num(np.sin(theta)) / np.sqrt((1 + np.abs(z)) / 3)
    up, down = (
        np.minimum((part * wide).astype(np.int64), nside - 1)
        for part in (turn - quarter, 1 - turn + quarter)
    )
    north, cap = z > 0, np.abs(z) > 2 / 3
    face = np.where(cap, np.where(north, quarter, quarter + 8), belt)
    x = np.where(cap, np.where(north, nside - 1 - down, up), x)
    y = np.where(cap, np.where(north, nside - 1 - up, down), y)
    return face * nside**2 + _spread(x) + 2 * _spread(y)


def _spread(bits: np.ndarray) -> np.ndarray:
    """Return numbers with a zero before each of their bits."""
    for step in (16, 8, 4, 2, 1):
        mask = sum(((1 << step) - 1) << (2 * step * i) for i in range(32 // step))
        bits = (bits | (bits << step)) & mask
    return bits
