"""Perceptual hash of images: those that look alike have hashes which differ in few bits.

It finds images that were resized or compressed again; of rendered scenes also some that merely look
alike.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image, Resampling

NEAR_BITS = 4
"""Hashes of near-duplicates differ in so many bits at most."""

_SIDE = 8
# Of hashes that differ in four bits at most, one of five bands is equal.
_BANDS = NEAR_BITS + 1
_ROWS = 2**10  # compared at a time with all others of a band


def difference_hash(image: Image) -> int:
    """Perceptual hash of 64 bits: whether each of 8 x 8 cells is brighter than the next one."""
    grey = image.convert("L").resize((_SIDE + 1, _SIDE), Resampling.BILINEAR)
    pixels = np.asarray(grey, dtype=np.int16)
    bits = (pixels[:, :-1] > pixels[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def near_maximum(hashes: NDArray[np.uint64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Maximum [n, k] of the values of all near-duplicates of each hash, itself included.

    Only hashes that are equal in one of five bands are compared, a few thousandths of all pairs.

    Args:
        hashes: distinct ones [n].
        values: k values of each [n, k].
    """
    found = values.copy()
    edges = np.linspace(0, 64, _BANDS + 1).astype(np.uint64)
    for start, stop in pairwise(edges):
        band = (hashes >> start) & np.uint64(2 ** int(stop - start) - 1)
        order = np.argsort(band, kind="stable")
        places = np.flatnonzero(np.diff(band[order])) + 1
        for group in np.split(order, places):
            for first in range(0, len(group) if len(group) > 1 else 0, _ROWS):
                own = group[first : first + _ROWS]
                near = np.bitwise_count(hashes[own][:, None] ^ hashes[group]) <= NEAR_BITS
                for column in range(values.shape[1]):
                    best = np.where(near, values[group, column], -1).max(1)
                    found[own, column] = np.maximum(found[own, column], best)
    return found
