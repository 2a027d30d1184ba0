"""Whole numbers, most of them small or zero, as few bytes."""

from __future__ import annotations

import lzma

import numpy as np

# Single numbers in a row say nothing of each other but how large they are: no bits of
# the one before, nor of the place, for a context.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]
_ESCAPE = 255


def packed(numbers: np.ndarray) -> bytes:
    """Integers below 2³¹ by size: zigzag bytes, and in full those of 255 and more."""
    wide = numbers.astype(np.int64).ravel()
    zigzag = (wide << 1) ^ (wide >> 63)
    small = np.minimum(zigzag, _ESCAPE).astype(np.uint8)
    large = zigzag[zigzag >= _ESCAPE].astype("<u4").tobytes()
    head = np.array([len(small), len(large) // 4], dtype="<u8").tobytes()
    return head + lzma.compress(
        small.tobytes() + large, format=lzma.FORMAT_RAW, filters=_FILTERS
    )


def unpacked(data: bytes) -> np.ndarray:
    """The integers again (int32)."""
    count, large = (int(n) for n in np.frombuffer(data[:16], dtype="<u8"))
    plain = lzma.decompress(data[16:], format=lzma.FORMAT_RAW, filters=_FILTERS)
    zigzag = np.frombuffer(plain[:count], dtype=np.uint8).astype(np.int64)
    rest = np.frombuffer(plain[count:], dtype="<u4")
    if len(rest) != large:
        raise ValueError(f"{large} large numbers announced, {len(rest)} found")
    zigzag[zigzag == _ESCAPE] = rest
    return ((zigzag >> 1) ^ -(zigzag & 1)).astype(np.int32)


def packed_lengths(values: np.ndarray) -> bytes:
    """Non-negative float32 to eight bits of mantissa; zeros stay zero."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").ravel()
    short = ((bits.astype(np.uint64) + 0x8000) >> 16).astype("<u2")
    planes = short.view(np.uint8).reshape(-1, 2).T
    return lzma.compress(planes.tobytes(), format=lzma.FORMAT_RAW, filters=_FILTERS)


def unpacked_lengths(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """The lengths again (float32), to a relative 2⁻⁸."""
    plain = lzma.decompress(data, format=lzma.FORMAT_RAW, filters=_FILTERS)
    planes = np.frombuffer(plain, dtype=np.uint8).reshape(2, -1)
    short = np.ascontiguousarray(planes.T).view("<u2").ravel()
    return (short.astype("<u4") << 16).view("<f4").reshape(shape).copy()
