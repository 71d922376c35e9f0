"""Views and batches of methods whose captions have hard negatives of their own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.conftest import Embeddings

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.losses.negclip import negclip
from compo_pipeline.methods.contract import Example, ImageInput, Objective, ViewContext
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.negclip import (
    NegativesBatch,
    NegClip,
    NegClipViews,
)

TEXT = "A small dog sits on the green sofa."


@pytest.fixture(scope="module")
def parses(tagged: Callable[[str], Parse]) -> dict[str, Parse]:
    """Of one sentence with everything to work on, and of one with nothing."""
    full = "[ A/DET/DT small/ADJ/JJ dog/NOUN/NN ] sits/VERB/VBZ on/ADP/IN "
    full += "[ the/DET/DT green/ADJ/JJ sofa/NOUN/NN ] _./PUNCT/."
    return {"full": tagged(full), "bare": tagged("Nothing/PRON/NN _./PUNCT/.")}


@pytest.fixture
def rows(caption: Callable[..., Caption]) -> list[Caption]:
    return [caption("full", TEXT), caption("bare", "Nothing.")]


def fsc_clip(**views: object) -> FscClip:
    return FscClip(FscClipViews(**views), FscClipObjective())  # type: ignore[arg-type]


def drawn(
    method: FscClip | NegClip, rows: list[Caption], parses: dict[str, Parse], epoch: int = 0
) -> list[View]:
    return list(method.views(rows, ViewContext(parses, "compo_en==1", 0, epoch)))


def test_each_rule_gives_a_negative_or_says_that_it_found_nothing(
    rows: list[Caption], parses: dict[str, Parse]
) -> None:
    full, bare = drawn(fsc_clip(), rows, parses)
    assert (full.kind, full.images, full.positives) == ("single", ("full.png",), (TEXT,))
    assert len(full.negatives) == 3 and TEXT not in full.negatives
    told = json.loads(full.provenance)
    assert told["language"] == "compo_en==1"
    assert [origin["generator"] for origin in told["negatives"]] == ["negclip", "replace", "bigram"]
    assert all(origin["words"] and origin["category"] for origin in told["negatives"])
    assert bare.negatives == (None, None, None)
    assert json.loads(bare.provenance)["negatives"] == [None, None, None]


def test_a_rule_left_out_leaves_the_others_texts(
    rows: list[Caption], parses: dict[str, Parse]
) -> None:
    """So that ablations, and NegCLIP beside FSC-CLIP, see the same swaps."""
    full = drawn(fsc_clip(), rows, parses)[0].negatives
    assert drawn(fsc_clip(generators=("bigram", "negclip")), rows, parses)[0].negatives == (
        full[2],
        full[0],
    )
    control = NegClip(NegClipViews(), Objective())
    assert drawn(control, rows, parses)[0].negatives == (full[0],)


def example(caption: Caption, *negatives: str | None) -> Example:
    view = View(
        *(caption.sample_id, "single", (caption.sample_id,), (caption.image,), None),
        *((caption.sentences[0],), negatives, (), (), (), "{}"),
    )
    return Example(caption, view)


def test_a_batch_masks_what_is_absent_or_reads_like_its_caption(
    caption: Callable[..., Caption], reader: Any
) -> None:
    rows = [
        example(caption("a", "A b c."), "C b a.", None, "b A c."),
        example(caption("b", "A b c d e f g."), "A b c d e f h.", "a B c d e f G.", None),
        example(caption("c", "X y."), None, None, None),
    ]
    batch, counts = fsc_clip().collate(rows, 0, reader)
    assert isinstance(batch, NegativesBatch)
    assert batch.texts.shape == (3, 4, 6)
    assert reader.texts(batch.texts[0]) == ["a b c.", "c b a.", "", "b a c."]
    # The second row's first negative differs where the context ends, its second in case alone.
    assert batch.valid.tolist() == [[True, False, True], [False] * 3, [False] * 3]
    assert counts == {
        "rows": 3,
        "rows without a negative": 2,
        "negatives that could not be made": 5,
        "negatives equal to a positive": 2,
    }
    assert reader.shown == [ImageInput((f"{name}.png",)) for name in "abc"]


def test_careful_rules_say_no_where_the_papers_swap(
    caption: Callable[..., Caption], parse: Callable[[str, str], Parse]
) -> None:
    """ "A cat and a dog" says the same as "a dog and a cat"."""
    row = caption("a", "A cat and a dog.")
    parses = {"a": parse("a", "A/DET cat/NOUN and/CCONJ a/DET dog/NOUN ./PUNCT")}
    for careful, expected in ((False, "A dog and a cat."), (True, None)):
        method = fsc_clip(generators=("swap",), careful=careful)
        assert drawn(method, [row], parses)[0].negatives == (expected,)


def test_negclips_captions_and_negatives_go_where_they_belong() -> None:
    """Rows alternate caption, negative; the second row has none."""
    draw = torch.Generator().manual_seed(0)
    u, t = (F.normalize(torch.randn(rows, 4, generator=draw), dim=-1) for rows in (3, 6))
    valid = torch.tensor([[True], [False], [True]])
    batch = NegativesBatch(torch.arange(3), torch.arange(6).view(3, 2, 1), valid)
    encoder: Any = Embeddings(u, t, 4.0)
    terms = NegClip(NegClipViews(), Objective()).loss(encoder, batch)
    expected = negclip(u, t[[0, 2, 4]], t[[1, 5]], torch.ones(2).bool(), encoder.scale)
    assert list(terms) == ["negclip"]
    assert terms["negclip"].value.item() == pytest.approx(expected.item(), abs=1e-6)
