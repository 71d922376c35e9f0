"""Images small enough to travel inside a page."""

from __future__ import annotations

import base64
import io

from PIL import Image


def thumbnail(image: Image.Image, side: int) -> tuple[str, int, int]:
    """A JPEG of at most `side` pixels either way as a data URI, its width and its height."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, subsampling=0)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/jpeg;base64,{encoded}", small.width, small.height
