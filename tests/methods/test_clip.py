"""Plain CLIP and plain SigLIP, the controls."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.conftest import Embeddings

from compo_pipeline.core.records import Caption, View
from compo_pipeline.methods.clip import Clip, ClipObjective, PairBatch, Siglip, SiglipObjective
from compo_pipeline.methods.contract import Example, ImageInput, NoViewSettings, ViewContext

CLIP = Clip(NoViewSettings(), ClipObjective())
IMAGES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
TEXTS = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
PAIRS = PairBatch(torch.arange(2), torch.arange(2)[:, None])


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


def test_clips_loss_by_hand() -> None:
    terms = CLIP.loss(Embeddings(IMAGES, TEXTS, 3.0), PAIRS)  # type: ignore[arg-type]
    e = {(i, j): math.exp(3 * float(IMAGES[i] @ TEXTS[j])) for i in range(2) for j in range(2)}
    rows = [-math.log(e[i, i] / (e[i, 0] + e[i, 1])) for i in range(2)]
    columns = [-math.log(e[i, i] / (e[0, i] + e[1, i])) for i in range(2)]
    assert list(terms) == ["clip"] and terms["clip"].weight == 1.0
    assert terms["clip"].value.item() == pytest.approx((sum(rows) + sum(columns)) / 4)


def test_siglips_loss_by_hand() -> None:
    """Four pairs, of which two match; the sum is divided by the two texts."""
    method = Siglip(NoViewSettings(), SiglipObjective())
    terms = method.loss(Embeddings(IMAGES, TEXTS, 3.0, -1.0), PAIRS)  # type: ignore[arg-type]
    total = 0.0
    for i in range(2):
        for j in range(2):
            z = 1 if i == j else -1
            total += math.log1p(math.exp(-z * (3 * float(IMAGES[i] @ TEXTS[j]) - 1)))
    assert list(terms) == ["contrastive"] and terms["contrastive"].weight == 1.0
    assert terms["contrastive"].value.item() == pytest.approx(total / 2)
