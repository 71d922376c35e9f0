"""What every text generator of a single caption returns, and what a generator is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from compo_pipeline.records import Parse

Span = tuple[int, int]  # half-open, in characters of a text


@dataclass(frozen=True, slots=True)
class Generated:
    """A text made from a parsed one, and where it comes from.

    Attributes:
        text: the new text.
        generator: the rule that made it.
        category: what the rule took hold of: a part of speech, a kind of phrase or of relation.
        words: what was taken out or moved, as it was written in the source; for a replacement the
            old words, then the new ones.
        spans: where `text` differs from its source, in text order.
    """

    text: str
    generator: str
    category: str
    words: tuple[str, ...]
    spans: tuple[Span, ...]


# Equal parses and equal states of the generator of random numbers give equal texts; None where
# the rule finds nothing to work on.
Generator = Callable[[Parse, random.Random], Generated | None]
