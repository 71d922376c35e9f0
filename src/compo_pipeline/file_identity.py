"""What tells large files apart without reading all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

# Of a large file these many pieces, spread over it, stand for the whole.
_PIECES, _PIECE = 64, 2**16


def identity(files: Iterable[tuple[str, Path]]) -> str:
    """Sixteen hexadecimal digits of files: small ones whole, of large ones their size and pieces.

    Towers that were trained further differ in nearly every piece of them.

    Args:
        files: each under the name that counts, in an order that does.
    """
    hashed = hashlib.sha256()
    for name, path in files:
        size = path.stat().st_size
        hashed.update(f"{name} {size} ".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(size // _PIECES, _PIECE)):
                file.seek(start)
                hashed.update(file.read(_PIECE))
    return hashed.hexdigest()[:16]
