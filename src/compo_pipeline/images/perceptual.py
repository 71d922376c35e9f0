"""Perceptual hash of images: those that look alike have hashes which differ in few bits.

It finds images that were resized or compressed again; of rendered scenes also some that merely look
alike.
"""

from __future__ import annotations

import numpy as np
from PIL.Image import Image, Resampling

NEAR_BITS = 4
"""Hashes of near-duplicates differ in so many bits at most."""

_SIDE = 8


def difference_hash(image: Image) -> int:
    """Perceptual hash of 64 bits: whether each of 8 x 8 cells is brighter than the next one."""
    grey = image.convert("L").resize((_SIDE + 1, _SIDE), Resampling.BILINEAR)
    pixels = np.asarray(grey, dtype=np.int16)
    bits = (pixels[:, :-1] > pixels[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
