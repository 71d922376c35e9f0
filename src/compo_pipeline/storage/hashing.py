"""Hashes that tell stored values and files apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from compo_pipeline.storage.remote import open_file

# Pieces read from a large file: their number, and bytes of each.
_PIECES, _PIECE = 64, 2**16


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes in hexadecimal digits, as `sha256sum` prints it."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_hash(files: Iterable[tuple[str, Path]]) -> str:
    """Hash, 16 hexadecimal digits, of the names, sizes and contents of several files.

    Small files are read whole, large ones in 64 pieces: fine-tuned weights differ in nearly all.

    Args:
        files: each with the name that counts, in the order that counts.
    """
    hashed = hashlib.sha256()
    for name, path in files:
        size = path.stat().st_size
        hashed.update(f"{name} {size} ".encode())
        with open_file(path) as file:
            for start in range(0, size, max(size // _PIECES, _PIECE)):
                file.seek(start)
                hashed.update(file.read(_PIECE))
    return hashed.hexdigest()[:16]
