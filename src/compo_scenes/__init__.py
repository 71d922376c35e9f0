"""Rendered compositional scenes: a small world with exact ground truth, the embedded data.

Geometry is in pixels of the image: x to the right, y downwards, a thing's `size_px` is the side
of the square that it is drawn in, (x, y) the centre of that square.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def scenes_base() -> Path:
    """Path of the shipped model folder `scenes-base`, a small CLIP trained on rendered scenes."""
    return Path(str(files(__name__))) / "resources" / "scenes_base"
