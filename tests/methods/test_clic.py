"""CLIC's batches and losses, the losses against an oracle written from the paper's equations."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.conftest import Embeddings
from torch import Tensor

from compo_pipeline.core.records import Caption, View
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


def oracle(
    u: list[list[float]],
    p: list[list[list[float]]],
    n: list[list[float]],
    valid: list[bool],
    s: float,
    power: int,
) -> dict[str, float]:
    """Equations 4 to 6, sum by sum; `p[l][i]` is the l-th positive of row i."""

    def e(a: list[float], b: list[float]) -> float:
        return math.exp(s * sum(x * y for x, y in zip(a, b, strict=True)))

    m, levels = len(u), len(p)
    cont = s_neg = 0.0
    for i in range(m):
        for texts in p:
            right = e(u[i], texts[i])
            cont += math.log(right / sum(e(u[i], texts[j]) for j in range(m)))
            cont += math.log(right / sum(e(u[j], texts[i]) for j in range(m)))
            if valid[i]:
                s_neg += math.log(right / (right + e(u[i], n[i])))
    distances = [math.dist(p[0][i], p[1][i]) ** power for i in range(m)] if levels > 1 else [0.0]
    return {
        "contrastive": -cont / (2 * levels * m),
        "s_neg": -s_neg / (levels * sum(valid)),
        "unimodal": sum(distances) / m,
    }


@pytest.mark.parametrize("levels", [1, 2, 4, 5])
@pytest.mark.parametrize(("norm", "power"), [("squared", 2), ("plain", 1)])
def test_losses_are_those_of_the_paper(levels: int, norm: str, power: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    m, width, scale = 6, 5, 7.0
    images = unit(generator, m, width)
    texts = unit(generator, (levels + 1) * m, width)
    valid = torch.tensor([True, False, True, True, False, True])
    ids = torch.arange(len(texts))[:, None]
    batch = ClicBatch(torch.arange(m), ids[:-m], ids[-m:], valid)
    encoder: Any = Embeddings(images, texts, scale)

    terms = clic(positives=levels, unimodal_norm=norm).loss(encoder, batch)

    p = texts[:-m].view(levels, m, width).tolist()
    expected = oracle(images.tolist(), p, texts[-m:].tolist(), valid.tolist(), scale, power)
    if levels == 1:
        del expected["unimodal"]
    assert {name: term.value.item() for name, term in terms.items()} == pytest.approx(expected)
    weights = {"contrastive": 0.5, "s_neg": 0.5, "unimodal": 1.0}
    assert {name: term.weight for name, term in terms.items()} == {
        name: weights[name] for name in expected
    }


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
