"""Plain CLIP, the control."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from compo_pipeline.core.records import Caption, View
from compo_pipeline.methods.clip import Clip, ClipObjective, PairBatch
from compo_pipeline.methods.contract import Example, ImageInput, NoViewSettings, ViewContext


class Encoder:
    """Hands back what it gets."""

    scale = torch.tensor(3.0)

    def images(self, images: Tensor) -> Tensor:
        return images

    def texts(self, tokens: Tensor) -> Tensor:
        return tokens


class Reader:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        return torch.zeros(len(images))

    def tokens(self, texts: Sequence[str]) -> Tensor:
        self.texts += texts
        return torch.zeros(len(texts), 1)


def clip() -> Clip:
    return Clip(NoViewSettings(), ClipObjective())


def test_views_are_the_captions(caption: Callable[..., Caption]) -> None:
    rows = [caption("a", "A cat.", "More."), caption("b", "A dog.")]
    views = list(clip().views(rows, ViewContext({}, "none", 0, 0)))
    assert [(view.sample_id, view.images, view.positives) for view in views] == [
        ("a", ("a.png",), ("A cat.",)),
        ("b", ("b.png",), ("A dog.",)),
    ]


def test_every_step_pairs_the_anchor_with_its_first_sentence(
    caption: Callable[..., Caption],
) -> None:
    """Whatever the view holds: the control runs over another method's views."""
    foreign = View(
        "a", "composite", ("a", "b"), ("b.png", "a.png"), "vertical", (), (), (), (), (), ""
    )
    row = Example(caption("a", "A CAT.", "More."), foreign)
    for step in (0, 1):
        reader = Reader()
        collated = clip().collate([row], step, reader)
        assert isinstance(collated.batch, PairBatch)
        assert reader.texts == ["a cat."]
        assert collated.counts == {"rows": 1}
        assert clip().images(row, step) == (ImageInput(("a.png",)),)


def test_the_loss_by_hand() -> None:
    u = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    t = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    terms = clip().loss(Encoder(), PairBatch(u, t))
    e = {(i, j): math.exp(3 * float(u[i] @ t[j])) for i in range(2) for j in range(2)}
    rows = [-math.log(e[i, i] / (e[i, 0] + e[i, 1])) for i in range(2)]
    columns = [-math.log(e[i, i] / (e[0, i] + e[1, i])) for i in range(2)]
    assert list(terms) == ["clip"]
    assert terms["clip"].weight == 1.0
    assert terms["clip"].value.item() == pytest.approx((sum(rows) + sum(columns)) / 4)
