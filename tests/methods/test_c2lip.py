"""C2LIP's views, batches and sum of losses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.core.records import Caption, Parse
from compo_pipeline.losses import concept, contrastive
from compo_pipeline.methods.c2lip import C2lip, C2lipObjective, ConceptBatch
from compo_pipeline.methods.contract import Example, ImageInput, NoViewSettings, ViewContext
from compo_pipeline.models.dense import DenseImages, TextTokens


def c2lip(**changes: Any) -> C2lip:
    return C2lip(NoViewSettings(), replace(C2lipObjective(), **changes))


@pytest.fixture
def rows(caption: Callable[..., Caption], parse: Callable[[str, str], Parse]) -> list[Example]:
    """A caption of three phrases, one of which comes twice, and one without any."""
    captions = [
        caption("a", "A red ball and a box near a red ball .", "More."),
        caption("b", "A RED ball alone."),
        caption("c", "Running fast."),
    ]
    ball = "A/DET red/ADJ ball/NOUN"
    parses = {
        "a": replace(
            parse("a", f"{ball} and/CCONJ a/DET box/NOUN near/ADP a/DET red/ADJ ball/NOUN ./PUNCT"),
            noun_phrases=(0, 3, 4, 6, 7, 10),
        ),
        "b": replace(parse("b", "A/DET RED/ADJ ball/NOUN alone/ADV ./PUNCT"), noun_phrases=(0, 3)),
        "c": parse("c", "Running/VERB fast/ADV ./PUNCT"),
    }
    views = c2lip().views(captions, ViewContext(parses, "test 1.0", seed=0, epoch=0))
    return [Example(row, view) for row, view in zip(captions, views, strict=True)]


class Reader:
    """A text's tokens are its first letters' codes; spans are as wide as the text is long."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        return torch.arange(len(images))

    def tokens(self, texts: Sequence[str]) -> Tensor:
        self.seen.append(list(texts))
        return torch.tensor([[len(text)] for text in texts])

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        place = torch.arange(40)
        within = torch.stack([(place >= start) & (place < end) for start, end in spans])
        # The caption of row 1 was cut before its phrase.
        return within & (torch.tensor(owners) != 1)[:, None]


def test_views_hold_each_phrase_once_with_its_place(rows: list[Example]) -> None:
    views = [row.view for row in rows]
    assert [view.phrases for view in views] == [
        ("A red ball", "a box"),
        ("A RED ball",),
        ("Running fast",),
    ]
    for view in views:
        places = zip(view.phrase_spans[::2], view.phrase_spans[1::2], strict=True)
        assert tuple(view.positives[0][start:end] for start, end in places) == view.phrases
    assert views[0].positives == ("A red ball and a box near a red ball.",)
    assert all(view.negatives == () for view in views)
    assert '"language": "test 1.0"' in views[0].provenance


def test_phrases_travel_flat_and_alike_ones_are_read_once(rows: list[Example]) -> None:
    reader = Reader()
    batch, counts = c2lip().collate(rows, 0, reader)
    assert ["a red ball", "a box", "running fast"] in reader.seen
    assert [row.view.positives[0].lower() for row in rows] in reader.seen
    assert batch.owners.tolist() == [0, 0, 1, 2]
    assert batch.labels.tolist() == [0, 1, 0, 2]
    assert batch.phrases.tolist() == [[10], [5], [12]]
    assert counts == {"rows": 3, "concepts": 4, "distinct concepts": 3}


def test_phrases_within_captions_are_spans_and_cut_ones_are_counted(rows: list[Example]) -> None:
    batch, counts = c2lip(phrases="tokens").collate(rows, 0, Reader())
    assert batch.owners.tolist() == [0, 0, 2]
    assert batch.labels.tolist() == [0, 1, 2]
    assert [row.nonzero().flatten().tolist() for row in batch.phrases] == [
        list(range(10)),
        list(range(15, 20)),
        list(range(12)),
    ]
    assert counts["concepts cut off with their caption"] == 1


class Encoder(Embeddings):
    """Three images of six patches and five texts of seven tokens, in four dimensions."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.patches = torch.randn(3, 6, 4, generator=draw, dtype=torch.float64)
        self.tokens = torch.randn(5, 7, 4, generator=draw, dtype=torch.float64)
        tables = (F.normalize(table.mean(1), dim=-1) for table in (self.patches, self.tokens))
        super().__init__(*tables, 8.0, -3.0)

    def dense_images(self, images: Tensor) -> DenseImages:
        return DenseImages(self.images(images), self.patches[images])

    def text_tokens(self, tokens: Tensor) -> TextTokens:
        return TextTokens(self.texts(tokens), self.tokens[tokens[:, 0]])


def batch() -> ConceptBatch:
    """Concepts 0 and 2 read alike; texts 3 and 4 are the two distinct ones."""
    return ConceptBatch(
        images=torch.arange(3),
        texts=torch.arange(3)[:, None],
        owners=torch.tensor([0, 0, 1, 2]),
        labels=torch.tensor([0, 1, 0, 1]),
        phrases=torch.tensor([[3], [4]]),
    )


def test_the_terms_are_the_losses_of_the_papers_equation_8() -> None:
    encoder, rows = Encoder(), batch()
    terms = c2lip().loss(encoder, rows)
    assert {name: term.weight for name, term in terms.items()} == {
        "contrastive": 1.0,
        "npc": 1.0,
        "xac": 0.01,
    }
    images, texts = encoder.images(rows.images), encoder.texts(rows.texts)
    phrases = encoder.texts(torch.tensor([[3], [4], [3], [4]]))
    matches = torch.tensor(
        [[True, True, False, False], [False, False, True, False], [False, False, False, True]]
    )
    s, b = encoder.scale, encoder.bias
    assert terms["contrastive"].value.equal(contrastive.sigmoid(images, texts, s, b))
    assert terms["npc"].value.equal(concept.npc(images, phrases, matches, s, b))
    expected = concept.xac(encoder.patches, phrases, matches, s, b)
    torch.testing.assert_close(terms["xac"].value, expected)


def test_phrases_pooled_from_the_caption_are_means_of_its_tokens() -> None:
    """Fig. 1b: concept 0 is tokens 1 and 2 of caption 0, concept 1 token 4 of caption 2."""
    within = torch.zeros(2, 9, dtype=torch.bool)
    within[0, 1:3] = within[1, 4] = True
    rows = batch()._replace(
        owners=torch.tensor([0, 2]), labels=torch.tensor([0, 1]), phrases=within
    )
    encoder = Encoder()
    terms = c2lip(phrases="tokens").loss(encoder, rows)  # type: ignore[arg-type]
    pooled = torch.stack([encoder.tokens[0, 1:3].mean(0), encoder.tokens[2, 4]])
    expected = concept.npc(
        encoder.images(rows.images),
        F.normalize(pooled, dim=-1),
        torch.tensor([[True, False], [False, False], [False, True]]),
        encoder.scale,
        encoder.bias,
    )
    torch.testing.assert_close(terms["npc"].value, expected)


def test_spans_are_of_the_lower_cased_caption(rows: list[Example]) -> None:
    """A capital I with a dot is two characters in lower case."""
    view = replace(
        rows[1].view,
        positives=("A man in \u0130zmir with a ball.",),
        phrases=("A man", "a ball"),
        phrase_spans=(0, 5, 20, 26),
    )
    reader = Reader()
    batch, _ = c2lip(phrases="tokens").collate([rows[0]._replace(view=view)], 0, reader)
    caption = view.positives[0].lower()
    found = [row.nonzero().flatten().tolist() for row in batch.phrases]
    assert ["".join(caption[k] for k in places) for places in found] == ["a man", "a ball"]
