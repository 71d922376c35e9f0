"""Measures of texts."""

import unicodedata
from collections import Counter
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def written_words() -> Callable[..., Counter[str]]:
    """Words of texts without case, as punctuation and spaces part them."""

    def count(*texts: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        for text in texts:
            parted = (" " if unicodedata.category(c)[0] in "PZ" else c for c in text.casefold())
            counted.update("".join(parted).split())
        return counted

    return count
