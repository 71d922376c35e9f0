"""Rendered compositional scenes: a small world with exact ground truth, the embedded data.

Geometry is in pixels of the image: x to the right, y downwards, a thing's `size_px` is the side
of the square that it is drawn in, (x, y) the centre of that square.
"""
