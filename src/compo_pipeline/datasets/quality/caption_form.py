"""Form of captions: marks that are no part of a text, and texts that are no captions."""

from __future__ import annotations

import re

URL = re.compile(r"(?:https?://|www\.)\S+", re.IGNORECASE)
FILE_NAME = re.compile(
    r"\S+\.(?:jpe?g|png|gif|webp|avif|heic|tiff?|bmp)|(?:IMG|DSC|DSCN|PXL|P)[_-]?\d+\w*",
    re.IGNORECASE,
)
"""The whole of a text that is the name of an image file."""
MARKUP = re.compile(
    r"</?(?:a|b|i|p|br|em|h[1-6]|li|ol|td|tr|ul|div|img|span|table|strong|box|ref|quad)\b[^<>]*>"
    r"|<loc_\d+>",
    re.IGNORECASE,
)
"""Elements of HTML, and boxes of captioning models."""
