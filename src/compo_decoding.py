"""What the pixels of an image become: upright 8-bit RGB, in training as where a version is served.

Registered versions carry this file beside `model.py`, so it imports Pillow and NumPy alone.

- Of 16 bits the upper 8 count, in grey as in colour.
- Grey, palettes and CMYK are converted by Pillow; colour profiles are ignored.
- Transparency is dropped: a pixel has the colour that the file stores for it.
- Of an animation the first frame counts.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "AVIF")
"""Not TIFF: whole tiles of it are unpacked, gigabytes for an image of one pixel."""

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnsupportedPixels(ValueError):
    """Exception for an image whose pixels are not 8 or 16 bits a channel."""


def upright_rgb(image: Image.Image, *, exif: bool = True) -> Image.Image:
    """Decode the pixels of an opened image, and turn it upright unless `exif` is false.

    Raises:
        UnsupportedPixels: its pixels are floats.
        Exception: of whatever kind broken bytes lead Pillow's decoders to.
    """
    if image.mode == "F":
        raise UnsupportedPixels("pixels are floats, expected 8 or 16 bits a channel")
    image.load()
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1)) if exif else None
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if turn is None else image.transpose(turn)
