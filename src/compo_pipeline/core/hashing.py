"""Content hashes of values and files, as keys of caches and as checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.remote import open_file

if TYPE_CHECKING:
    from torch import Tensor

# Pieces read from a large file: their number, and bytes of each.
_PIECES, _PIECE = 64, 2**16


def hash_of(*values: Any) -> str:
    """Hash, 16 hexadecimal digits, of plain values, settings, sets and paths."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=_as_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return f"{value}" if isinstance(value, Path) else sorted(value)


def files_in(folder: Path, suffixes: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files in a folder, or of those with some suffixes.

    Hidden ones are left out.
    """
    for path in sorted(folder.rglob("*")):
        name, fits = path.relative_to(folder), not suffixes or path.suffix in suffixes
        if fits and path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), path


def tensors_hash(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    """SHA-256 of named tensors and of values that describe them.

    Floating tensors are hashed as float32, so the precision of the file does not matter.
    """
    hashed = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu()
        if plain.is_floating_point():
            plain = plain.float()
        hashed.update(f"\0{name}\0{tuple(plain.shape)}\0".encode())
        hashed.update(plain.contiguous().numpy().tobytes())
    return hashed.hexdigest()


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
