"""Random generators seeded by the purpose of a draw, independent of process and order.

The same (seed, epoch, sample_id) gives the same draw with any number of workers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def digest(*parts: str | int) -> int:
    """64-bit hash of texts and integers, equal in all processes and on all machines."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def rng(*parts: str | int) -> random.Random:
    """Random generator seeded by a hash of the parts, e.g. `rng(seed, epoch, sample_id)`."""
    return random.Random(digest(*parts))


def drawn(rows: Sequence[T], count: int, *parts: str | int) -> list[T]:
    """At most `count` random rows in their order, by a draw that is seeded by the parts."""
    places = rng(*parts).sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in sorted(places)]
