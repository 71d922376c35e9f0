"""Captions and parses written out by hand, and a reader that tells what it was asked."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.methods.contract import ImageInput


@pytest.fixture(scope="session")
def caption() -> Callable[..., Caption]:
    """A caption of an image of its own; a sentence may be tagged as `word/UPOS`."""

    def make(
        sample_id: str, *sentences: str, image: str | None = None, tall: bool = False
    ) -> Caption:
        image_path = image or sample_id
        size = (30, 40) if tall else (40, 30)
        plain = tuple(
            " ".join(token.rsplit("/", 1)[0] for token in sentence.split()).replace(" .", ".")
            for sentence in sentences
        )
        return Caption(sample_id, image_path, f"{image_path}.png", *size, plain, "test", "train")

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


class Reader:
    """Tokens are words, cut to six; images are numbered as they come."""

    def __init__(self) -> None:
        self.words = {"": 0}

    def tokens(self, texts: Sequence[str]) -> Tensor:
        rows = [[self.words.setdefault(w, len(self.words)) for w in t.split()] for t in texts]
        return torch.tensor([(row + [0] * 6)[:6] for row in rows])

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        self.shown = list(images)
        return torch.arange(len(images))

    def texts(self, tokens: Tensor) -> list[str]:
        """The words that rows of tokens stand for."""
        names = {number: word for word, number in self.words.items()}
        return [" ".join(names[int(i)] for i in row if i) for row in tokens]


class Embeddings:
    """An encoder whose images and texts are rows of tables; a text's row is its first token."""

    def __init__(
        self, images: Tensor, texts: Tensor, scale: float, bias: float | None = None
    ) -> None:
        self.image_table, self.text_table = images, texts
        self.scale = torch.tensor(scale, dtype=images.dtype)
        self.bias = None if bias is None else torch.tensor(bias, dtype=images.dtype)
        self.memory: dict[str, Tensor] = {}

    def images(self, images: Tensor) -> Tensor:
        return self.image_table[images]

    def texts(self, tokens: Tensor) -> Tensor:
        return self.text_table[tokens[:, 0]]


@pytest.fixture
def reader() -> Reader:
    return Reader()
