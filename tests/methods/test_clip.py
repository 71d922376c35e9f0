"""Plain CLIP and plain SigLIP, the controls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.conftest import Embeddings

from compo_pipeline.core.records import Caption, View
from compo_pipeline.losses import contrastive
from compo_pipeline.methods.clip import Clip, ClipObjective, PairBatch, Siglip, SiglipObjective
from compo_pipeline.methods.contract import Example, ImageInput, NoViewSettings, ViewContext

CLIP = Clip(NoViewSettings(), ClipObjective())
SIGLIP = Siglip(NoViewSettings(), SiglipObjective())


def test_views_are_the_captions(caption: Callable[..., Caption]) -> None:
    rows = [caption("a", "A cat.", "More."), caption("b", "A dog.")]
    views = list(CLIP.views(rows, ViewContext({}, "none", 0, 0)))
    assert [(view.sample_id, view.images, view.positives) for view in views] == [
        ("a", ("a.png",), ("A cat.",)),
        ("b", ("b.png",), ("A dog.",)),
    ]


def test_every_step_pairs_the_anchor_with_its_first_sentence(
    caption: Callable[..., Caption], reader: Any
) -> None:
    """Whatever the view holds: the control runs over another method's views."""
    foreign = View(
        "a", "composite", ("a", "b"), ("b.png", "a.png"), "vertical", (), (), (), (), (), ""
    )
    row = Example(caption("a", "A CAT.", "More."), foreign)
    for step in (0, 1):
        batch, counts = CLIP.collate([row], step, reader)
        assert reader.texts(batch.texts) == ["a cat."] and counts == {"rows": 1}
        assert reader.shown == list(CLIP.images(row, step)) == [ImageInput(("a.png",))]


@pytest.mark.parametrize(
    ("method", "name", "loss"),
    [
        (CLIP, "clip", lambda u, t, e: contrastive.clip(u, t, e.scale)),
        (SIGLIP, "contrastive", lambda u, t, e: contrastive.sigmoid(u, t, e.scale, e.bias)),
    ],
)
def test_pairs_go_into_the_loss(method: Any, name: str, loss: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(3, 4, generator=draw) for _ in range(2))
    encoder = Embeddings(images, texts, 3.0, -1.0)
    terms = method.loss(encoder, PairBatch(torch.arange(3), torch.arange(3)[:, None]))
    assert list(terms) == [name] and terms[name].weight == 1.0
    assert terms[name].value.equal(loss(images, texts, encoder))
