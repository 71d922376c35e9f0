"""CLIC's batches, and the losses that they go into."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.core.records import Caption, View
from compo_pipeline.losses.contrastive import multi_positive
from compo_pipeline.losses.hard_negative import s_neg
from compo_pipeline.losses.unimodal import unimodal
from compo_pipeline.methods.clic import Clic, ClicBatch, ClicObjective, ClicViews
from compo_pipeline.methods.clip import PairBatch
from compo_pipeline.methods.contract import Example, ImageInput


def clic(**objective: object) -> Clic:
    return Clic(ClicViews(), ClicObjective(**objective))  # type: ignore[arg-type]


@pytest.fixture
def example(caption: Callable[..., Caption]) -> Callable[..., Example]:
    """A row whose view has the given positives and negative."""

    def make(
        name: str, negative: str | None, *positives: str, axis: str | None = "vertical"
    ) -> Example:
        padded = (*positives, *[f"More of {name}."] * 5)[:5]
        view = View(
            *(name, "composite", (name, "other"), (f"{name}.png", "other.png"), axis),
            *(padded, (negative,), (), (), (), "{}"),
        )
        return Example(caption(name, f"First of {name}."), view)

    return make


def test_even_steps_show_composites_and_odd_steps_the_anchor(
    example: Callable[..., Example], reader: Any
) -> None:
    row = example("a", "Not.")
    composite = ImageInput(("a.png", "other.png"), "vertical")
    alone = ImageInput(("a.png",))
    assert [clic().images(row, step) for step in range(4)] == [(composite,), (alone,)] * 2
    assert [clic(clip_steps=False).images(row, step) for step in range(2)] == [(composite,)] * 2
    for step, kind, shown in ((6, ClicBatch, composite), (7, PairBatch, alone)):
        assert isinstance(clic().collate([row], step, reader).batch, kind)
        assert reader.shown == [shown]


def test_texts_are_lower_cased_and_positives_lie_one_after_the_other(
    example: Callable[..., Example], reader: Any
) -> None:
    rows = [example("a", "NOT a", "P1 a", "P2 a"), example("b", "NOT b", "P1 b", "P2 b")]
    batch = clic(positives=2).collate(rows, 0, reader).batch
    assert reader.texts(batch.positives) == ["p1 a", "p1 b", "p2 a", "p2 b"]
    assert reader.texts(batch.negatives) == ["not a", "not b"]
    plain = clic().collate(rows, 1, reader).batch
    assert reader.texts(plain.texts) == ["first of a.", "first of b."]


def test_negatives_that_are_absent_or_equal_to_a_positive_are_masked_and_counted(
    example: Callable[..., Example], reader: Any
) -> None:
    long = "one two three four five six"
    rows = [
        example("good", "red cat", "blue cat"),
        example("null", None, "blue cat"),
        example("same", "Blue CAT", "x", "blue cat"),  # by case alone, and of the second positive
        example("cut", f"{long} seven", f"{long} eight"),  # by what is cut off alone
        example("beyond", "blue cat", "x", "y", "blue cat"),  # equal to a positive not in use
    ]
    batch, counts = clic(positives=2).collate(rows, 0, reader)
    assert batch.valid.tolist() == [True, False, False, False, True]
    assert counts == {
        "rows": 5,
        "rows without a negative": 1,
        "negatives equal to a positive": 2,
    }


def unit(generator: torch.Generator, *shape: int) -> Tensor:
    table = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(table, dim=-1)


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_the_terms_are_those_of_equations_4_to_6(levels: int, norm: Any) -> None:
    m, generator = 6, torch.Generator().manual_seed(levels)
    images, texts = unit(generator, m, 5), unit(generator, (levels + 1) * m, 5)
    valid = torch.tensor([True, False, True, True, False, True])
    ids = torch.arange(len(texts))[:, None]
    encoder: Any = Embeddings(images, texts, 7.0)
    batch = ClicBatch(torch.arange(m), ids[:-m], ids[-m:], valid)
    terms = clic(positives=levels, unimodal_norm=norm).loss(encoder, batch)
    positives, scale = texts[:-m].view(levels, m, 5), encoder.scale
    expected = {
        "contrastive": (multi_positive(images, positives, scale), 0.5),
        "s_neg": (s_neg(images, positives, texts[-m:], valid, scale), 0.5),
    }
    if levels > 1:
        expected["unimodal"] = (unimodal(positives[0], positives[1], norm), 1.0)
    assert terms.keys() == expected.keys()
    for name, (value, weight) in expected.items():
        torch.testing.assert_close(terms[name].value, value)
        assert terms[name].weight == weight


def test_a_masked_negative_has_no_gradient_and_a_batch_without_any_loses_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = unit(generator, 3, 4), unit(generator, 6, 4).requires_grad_()
    ids = torch.arange(6)[:, None]
    encoder: Any = Embeddings(images, texts, 100.0)

    def gradient(valid: list[bool]) -> Tensor:
        batch = ClicBatch(torch.arange(3), ids[:3], ids[3:], torch.tensor(valid))
        (found,) = torch.autograd.grad(clic(positives=1).loss(encoder, batch)["s_neg"].value, texts)
        return found

    some = gradient([True, False, True])
    assert (some[[0, 2, 3, 5]].abs().sum(1) > 0).all() and (some[[1, 4]] == 0).all()
    assert (gradient([False] * 3) == 0).all()
