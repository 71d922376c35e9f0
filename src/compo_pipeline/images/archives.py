"""Images in tar archives, read in place: headers are scanned once, nothing is unpacked.

The name of such an image is that of the archive and that of the member: `0.tar/000012.jpg`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

_BLOCK = 512  # bytes; every member has a header of one or more
_SCANNED = 4096  # archives whose members are remembered
_ENDING = ".tar"


@dataclass(frozen=True, slots=True)
class Archive:
    """The members of an archive, and whether its end is missing.

    `members` has the place and size of each file's bytes; in a cut archive the last ones may lie
    beyond its end.
    """

    members: Mapping[str, tuple[int, int]]
    cut: bool


def parted(name: str) -> tuple[str, str]:
    """The archive and the member of an image's name; the member is empty for a plain file."""
    archive, inside, member = name.partition(f"{_ENDING}/")
    return (f"{archive}{_ENDING}", member) if inside else (name, "")


def scan(path: Path) -> Archive:
    """The members of an archive; an archive that has not changed is scanned once.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no tar archive.
    """
    status = path.stat()
    return _scan(path, status.st_size, status.st_mtime_ns)


@lru_cache(_SCANNED)
def _scan(path: Path, size: int, modified_ns: int) -> Archive:
    members: dict[str, tuple[int, int]] = {}
    cut = False
    try:
        with tarfile.open(path, "r:") as archive:
            try:
                for member in islice(archive, size // _BLOCK):
                    if member.isreg() and not member.issparse() and member.size >= 0:
                        members.setdefault(member.name, (member.offset_data, member.size))
            except tarfile.ReadError:
                cut = True
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a tar archive: {error}") from error
    last = max((place + length for place, length in members.values()), default=0)
    # An empty block follows the last member.
    return Archive(members, cut or last > size - _BLOCK)


def read(path: Path, member: str) -> bytes:
    """The bytes of a member, fewer than its size where the archive is cut.

    Raises:
        KeyError: there is no such file in it.
        OSError: the archive cannot be read.
        ValueError: it is no tar archive.
    """
    place, size = scan(path).members[member]
    with path.open("rb") as file:
        file.seek(place)
        return file.read(size)
