"""Views and batches of methods whose captions have hard negatives of their own."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.methods.contract import Example, ImageInput, Objective, ViewContext
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.negclip import (
    NegativesBatch,
    NegClip,
    NegClipViews,
)

TEXT = "A small dog sits on the green sofa."


@pytest.fixture(scope="module")
def parses() -> dict[str, Parse]:
    """Of one sentence with everything to work on, and of one with nothing."""
    words = ("A", "small", "dog", "sits", "on", "the", "green", "sofa", ".")
    offsets = (0, 2, 8, 12, 17, 20, 24, 30, 34)
    upos = ("DET", "ADJ", "NOUN", "VERB", "ADP", "DET", "ADJ", "NOUN", "PUNCT")
    tags = ("DT", "JJ", "NN", "VBZ", "IN", "DT", "JJ", "NN", ".")
    return {
        "full": Parse("full", 0, TEXT, words, offsets, upos, tags, (0, 3, 5, 8)),
        "bare": Parse(
            "bare", 0, "Nothing.", ("Nothing", "."), (0, 7), ("PRON", "PUNCT"), ("NN", "."), ()
        ),
    }


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
    negclip = NegClip(NegClipViews(), Objective())
    assert drawn(negclip, rows, parses)[0].negatives == (full[0],)


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
