"""The manifest: which bytes a run was made from, file by file and as one hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.images.decoding import DecodedImage


def of(
    root: Path, annotations: Iterable[str], images: Mapping[str, DecodedImage]
) -> dict[str, Any]:
    """Hashes of the annotation files and of every image that there is.

    Args:
        root: the data's root.
        annotations: annotation files below it.
        images: what was found at each path.

    Returns:
        data_hash (sha256 over the sorted paths and hashes), files, count and bytes.
    """
    files = {}
    total = 0
    for name in dict.fromkeys(annotations):
        path = root / name
        with path.open("rb") as file:
            files[name] = hashlib.file_digest(file, "sha256").hexdigest()
        total += path.stat().st_size
    for name, image in images.items():
        if image.sha256:
            files[name] = image.sha256
            total += image.bytes
    files = dict(sorted(files.items()))
    listing = hashlib.sha256()
    for name, digest in files.items():
        listing.update(f"{digest}  {name}\n".encode())
    return {
        "data_hash": listing.hexdigest(),
        "count": len(files),
        "bytes": total,
        "files": files,
    }
