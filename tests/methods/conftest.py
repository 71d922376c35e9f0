"""Captions and parses written out by hand."""

from collections.abc import Callable

import pytest

from compo_pipeline.records import Caption, Parse


@pytest.fixture(scope="session")
def caption() -> Callable[..., Caption]:
    """A caption of a picture of its own; a sentence may be tagged as `word/UPOS`."""

    def make(
        sample_id: str, *sentences: str, image: str | None = None, tall: bool = False
    ) -> Caption:
        picture = image or sample_id
        size = (30, 40) if tall else (40, 30)
        plain = tuple(
            " ".join(token.rsplit("/", 1)[0] for token in sentence.split()).replace(" .", ".")
            for sentence in sentences
        )
        return Caption(sample_id, picture, f"{picture}.png", *size, plain, "test", "train")

    return make


@pytest.fixture(scope="session")
def parse() -> Callable[[str, str], Parse]:
    """A parse of a tagged sentence: `A/DET cat/NOUN ./PUNCT`, the period joined on."""

    def make(sample_id: str, tagged: str) -> Parse:
        words, upos, offsets, text = [], [], [], ""
        for token in tagged.split():
            word, tag = token.rsplit("/", 1)
            text += "" if tag == "PUNCT" or not text else " "
            offsets.append(len(text))
            text += word
            words.append(word)
            upos.append(tag)
        blank = ("",) * len(words)
        return Parse(sample_id, 0, text, tuple(words), tuple(offsets), tuple(upos), blank, ())

    return make
