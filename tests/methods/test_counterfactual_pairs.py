"""Views and batches of methods that train on synthetic pairs beside the real ones."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from compo_pipeline.core.records import Caption, Counterfactual, View
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Example, ImageInput, ViewContext
from compo_pipeline.methods.counterfactual_pairs import CounterfactualPairs, embed_pairs
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective
from compo_pipeline.methods.triplet_clip import TripletClip, TripletClipObjective

Edits = Callable[..., list[Counterfactual]]


def edits(sample_id: str, sentence: int = 0, **texts: str) -> list[Counterfactual]:
    """Edits of one sentence by role; a text that ends with ! has no image."""
    return [
        Counterfactual(
            *(sample_id, sentence, "", role, text.rstrip("!")),
            "" if text.endswith("!") or not text else f"{sample_id}.{sentence}.{role}.jpg",
            *("rules", "painter", "0", "made", "replaced"),
        )
        for role, text in texts.items()
    ]


def sparcl(**objective: object) -> Sparcl:
    return Sparcl(Sparcl.views_type(), SparclObjective(**objective))  # type: ignore[arg-type]


def drawn(
    rows: list[Caption], made: Sequence[Counterfactual], epoch: int = 0, seed: int = 0
) -> list[View]:
    by_id = {
        row.sample_id: [
            replace(one, caption=row.sentences[one.sentence])
            for one in made
            if one.sample_id == row.sample_id
        ]
        for row in rows
    }
    return list(sparcl().views(rows, ViewContext({}, "none", seed, epoch, by_id)))


def test_a_view_holds_what_there_is_of_both_pairs(caption: Callable[..., Caption]) -> None:
    rows = [caption(name, f"A {name}.") for name in ("both", "negative", "textual", "none")]
    made = [
        *edits("both", negative="No.", positive="Yes."),
        *edits("negative", negative="No.", positive=""),
        *edits("textual", negative="No.!", positive="Yes.!"),
        *edits("none", negative="", positive=""),
    ]
    views = drawn(rows, made)
    assert [view.sample_id for view in views] == [row.sample_id for row in rows]
    assert [view.positives for view in views] == [
        *(("A both.", "Yes."), ("A negative.",), ("A textual.", "Yes."), ("A none.",))
    ]
    assert [view.negatives for view in views] == [("No.",)] * 3 + [(None,)]
    assert [view.counterfactuals for view in views] == [
        ("both.0.negative.jpg", "both.0.positive.jpg"),
        ("negative.0.negative.jpg", ""),
        *[("", "")] * 2,
    ]
    told = [json.loads(view.provenance)["negatives"] for view in views]
    assert told[0] == [{"generator": "rules", "category": "replaced", "words": []}]
    assert told[3] == [None]


def test_each_epoch_draws_one_edited_caption_of_an_image(caption: Callable[..., Caption]) -> None:
    """Its rows and their sentences alike; what has no edit is not drawn where another has."""
    rows = [
        caption("a", "A one.", "A two.", "A bare.", image="one"),
        caption("b", "B one.", image="one"),
        caption("c", "C one.", image="other"),
    ]
    made = [
        *edits("a", 0, negative="n0"), *edits("a", 1, negative="n1"), *edits("b", 0, negative="n2"),
    ]  # fmt: skip
    seen = set()
    for epoch in range(40):
        first, second = drawn(rows, made, epoch)
        assert (first.sample_id, first.positives, first.negatives) in {
            ("a", ("A one.",), ("n0",)), ("a", ("A two.",), ("n1",)), ("b", ("B one.",), ("n2",)),
        }  # fmt: skip
        assert (second.sample_id, second.negatives) == ("c", (None,))
        seen.add(first.positives)
        assert drawn(rows, made, epoch)[0] == first
    assert len(seen) == 3
    assert [drawn(rows, made, e)[0] for e in range(9)] != [
        drawn(rows, made, e, seed=1)[0] for e in range(9)
    ]


def test_without_counterfactuals_it_says_where_they_come_from(
    caption: Callable[..., Caption],
) -> None:
    message = r"triplet_clip .*kedro run --pipeline=counterfactuals --params method=triplet_clip"
    method = TripletClip(TripletClip.views_type(), TripletClipObjective())
    with pytest.raises(ValueError, match=message):
        list(method.views([caption("a", "A cat.")], ViewContext({}, "none", 0, 0)))


@pytest.mark.parametrize("sentences", [("A dog.",), ("More.", "A cat."), ()])
def test_edits_of_other_captions_are_refused(
    caption: Callable[..., Caption], sentences: tuple[str, ...]
) -> None:
    """The data changed since: under the same id stands another caption, or none."""
    made = {"a": [replace(one, caption="A cat.") for one in edits("a", negative="A cup.")]}
    row = replace(caption("a", "x"), sentences=sentences)
    with pytest.raises(ValueError, match=r"of a are of another caption \('A cat.'\).*kedro run"):
        list(sparcl().views([row], ViewContext({}, "none", 0, 0, made)))


@pytest.fixture
def examples(caption: Callable[..., Caption]) -> list[Example]:
    """Both pairs; a negative alone; texts alone; nothing; a negative that reads as its caption."""
    rows = [caption(name, f"A {name}.") for name in "abcd"] + [caption("e", "A b c d e f g.")]
    made = [
        *edits("a", negative="No a.", positive="Yes a."),
        *edits("b", negative="No b."),
        *edits("c", negative="No c.!", positive="Yes c.!"),
        *edits("e", negative="a b c d e f H.", positive="Yes e."),
    ]
    return [Example(row, view) for row, view in zip(rows, drawn(rows, made), strict=True)]


def test_a_batch_holds_what_there_is_kind_by_kind(examples: list[Example], reader: Any) -> None:
    batch, counts = sparcl().collate(examples, 0, reader)
    assert reader.shown == [
        *(ImageInput((f"{name}.png",)) for name in "abcde"),
        *(ImageInput((f"{name}.0.negative.jpg",), counterfactual=True) for name in "ab"),
        *(ImageInput((f"{name}.0.positive.jpg",), counterfactual=True) for name in "ae"),
    ]
    assert batch.images_there.tolist() == [
        [True] * 5, [True, True, False, False, False], [True, False, False, False, True],
    ]  # fmt: skip
    assert reader.texts(batch.texts) == [
        *("a a.", "a b.", "a c.", "a d.", "a b c d e f"),
        *("no a.", "no b.", "no c.", "yes a.", "yes c.", "yes e."),
    ]
    assert batch.texts_there.tolist() == [
        [True] * 5, [True, True, True, False, False], [True, False, True, False, True],
    ]  # fmt: skip
    assert counts == {
        "rows": 5,
        "rows without a negative": 2,
        "rows without a rephrased caption": 2,
        "synthetic images": 4,
        "negatives equal to a positive": 1,
    }


@pytest.mark.parametrize(
    ("method", "images", "texts"),
    [
        (sparcl(), [5, 2, 2], [5, 3, 3]),
        (sparcl(images=False), [5, 0, 0], [5, 3, 3]),
        (TripletClip(TripletClip.views_type(), TripletClipObjective()), [5, 2, 0], [5, 3, 0]),
        (
            TripletClip(TripletClip.views_type(), TripletClipObjective(images=False)),
            [5, 0, 0],
            [5, 3, 0],
        ),
    ],
)
def test_what_a_method_looks_at(
    examples: list[Example],
    reader: Any,
    method: CounterfactualPairs,
    images: list[int],
    texts: list[int],
) -> None:
    batch, _ = method.collate(examples, 0, reader)
    assert (batch.images_there.sum(1).tolist(), batch.texts_there.sum(1).tolist()) == (
        images,
        texts,
    )
    assert len(batch.images) == sum(images) and len(batch.texts) == sum(texts)
    # What a feature cache holds covers what a batch asks for.
    needed = {image for row in examples for image in method.images(row, 0)}
    assert needed >= set(reader.shown)


def test_embeddings_stand_at_their_places_and_take_their_gradients(
    examples: list[Example], reader: Any
) -> None:
    batch, _ = sparcl().collate(examples, 0, reader)
    table = torch.randn(20, 4, requires_grad=True)

    class Rows:
        def images(self, images: Tensor) -> Tensor:
            return table[images]

        def texts(self, tokens: Tensor) -> Tensor:
            return table[: len(tokens)]

    embedded_images, texts = embed_pairs(Rows(), batch)  # type: ignore[arg-type]
    assert torch.equal(embedded_images[0], table[:5]) and torch.equal(
        embedded_images[1, :2], table[5:7]
    )
    assert torch.equal(embedded_images[2, [0, 4]], table[7:9])
    assert not embedded_images[~batch.images_there].any() and not texts[~batch.texts_there].any()
    (gradient,) = torch.autograd.grad(embedded_images[2, 4].sum(), table)
    assert gradient[8].tolist() == [1.0] * 4 and not gradient[:8].any()


def test_the_control_sees_the_caption_that_was_drawn(
    caption: Callable[..., Caption], reader: Any
) -> None:
    row = caption("a", "A one.", "A two.")
    (view,) = drawn([row], edits("a", 1, negative="n"))
    plain = control_of(sparcl())
    assert reader.texts(plain.collate([Example(row, view)], 0, reader).batch.texts) == ["a two."]
