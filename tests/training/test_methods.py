"""What the loop relies on, of every method of the registry."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compo_pipeline.core.compute import Compute
from compo_pipeline.methods.contract import Example, Method, ViewContext
from compo_pipeline.methods.registry import METHODS, method_type
from compo_pipeline.methods.views import write
from compo_pipeline.models.encoding import MOST_SCALE
from compo_pipeline.models.loading import LoadedModel, give_bias
from compo_pipeline.models.settings import SHIPPED
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.optimisation import freeze
from compo_pipeline.training.preprocessing import ModelPreprocessor

every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture
def method(name: str) -> Method:
    kind = method_type(name)
    return kind(kind.views_type(), kind.objective_type(trains=("text",)))


@pytest.fixture
def context(world: Any) -> ViewContext:
    return ViewContext(world.parses, "hand", 0, 0, world.edits())


@every_method
def test_views_are_the_same_each_time_and_in_the_captions_order(
    method: Method, world: Any, context: ViewContext
) -> None:
    views = list(method.views(world.captions, context))
    assert views == list(method.views(world.captions, context))
    order = [caption.sample_id for caption in world.captions]
    shown = [order.index(view.sample_id) for view in views]
    assert shown == sorted(set(shown)) and len(shown) > 1


class Watched(ModelEncoder):
    """Notes what a loss reads of the base beside embeddings."""

    def dense_images(self, images: Tensor) -> Any:
        self.memory.setdefault("patches", torch.tensor(1))
        return super().dense_images(images)

    def dense_texts(self, tokens: Tensor) -> Any:
        self.memory.setdefault("marked_tokens", torch.tensor(1))
        return super().dense_texts(tokens)

    def text_tokens(self, tokens: Tensor) -> Any:
        self.memory.setdefault("tokens", torch.tensor(1))
        return super().text_tokens(tokens)


def trained_on(method: Method, loaded: LoadedModel, batch: Any) -> tuple[dict[str, float], Tensor]:
    """Losses of a batch by name, and their weighted sum, of which the model gets the gradient.

    What the loss reads of the base is what the method says that it needs.
    """
    torch.manual_seed(0)
    method.extend(loaded.model, SHIPPED)
    freeze(loaded.model, method.trains, scale=method.trains_scale)
    compute = Compute(torch.device("cpu"), "fp32")
    encoder = Watched(loaded.model, loaded.name, None, "image" in method.trains, compute)
    terms = method.loss(encoder, batch)
    read = {"patches", "tokens", "marked_tokens"}
    assert read & encoder.memory.keys() == read & method.needs.keys()
    total = torch.stack([weight * value for value, weight in terms.values()]).sum()
    total.backward()
    return {name: value.item() for name, (value, _) in terms.items()}, total


@every_method
def test_a_batch_is_the_same_each_time_and_trains_the_method_s_towers_alone(
    method: Method,
    world: Any,
    context: ViewContext,
    tiny: LoadedModel,
    recipe: Any,
    tmp_path: Path,
) -> None:
    write(method, world.captions, context, 1, tmp_path / "views", long_share=0.5)
    loaded = tiny if method.bias is None else give_bias(tiny, method.bias)
    preprocessor = ModelPreprocessor(loaded, world.root)
    inputs = (world.captions, tmp_path / "views", method, preprocessor)
    batches = Batches(*inputs, recipe(epochs=1), 0)
    ((batch, counts),) = batches[0]
    (again,) = ForkingPickler.loads(ForkingPickler.dumps(batches))[0]  # as a worker process gets it
    assert all(torch.equal(one, other) for one, other in zip(batch, again.batch, strict=True))
    assert counts == again.counts and counts["rows"] == 4
    shown = {image for row in batches.examples(0) for image in method.images(row, 0)}
    assert shown <= set(batches.images().values())

    _, total = trained_on(method, loaded, batch)
    assert total.isfinite() and total.ndim == 0
    got = {name for name, one in loaded.model.named_parameters() if one.grad is not None}
    assert got and not any(name.startswith("visual.") for name in got)
    assert ("logit_scale" in got) == method.trains_scale


def without_negatives(rows: list[Example], _: LoadedModel) -> list[Example]:
    """No rule found a negative, a phrase or an edit for any row."""
    return [
        Example(
            row.caption,
            replace(
                row.view,
                negatives=(None,) * len(row.view.negatives),
                positives=row.view.positives[:1] * len(row.view.positives),
                phrases=(),
                phrase_spans=(),
                counterfactuals=("",) * len(row.view.counterfactuals),
            ),
        )
        for row in rows
    ]


def one_row(rows: list[Example], _: LoadedModel) -> list[Example]:
    return rows[:1]


def equal_captions(rows: list[Example], _: LoadedModel) -> list[Example]:
    """Other images with the first row's texts: its positives are false negatives."""
    first = rows[0].view
    texts = {"positives": first.positives, "negatives": first.negatives}
    phrases = {"phrases": first.phrases, "phrase_spans": first.phrase_spans}
    return [Example(row.caption, replace(row.view, **texts, **phrases)) for row in rows]


def least_scale(rows: list[Example], loaded: LoadedModel) -> list[Example]:
    loaded.model.logit_scale.data.fill_(0.0)
    return rows


def greatest_scale(rows: list[Example], loaded: LoadedModel) -> list[Example]:
    loaded.model.logit_scale.data.fill_(math.log(MOST_SCALE))
    return rows


def no_embeddings(rows: list[Example], loaded: LoadedModel) -> list[Example]:
    """Every image and every text is embedded as zero, which has no direction."""
    loaded.model.text_projection.data.zero_()
    loaded.model.visual.proj.data.zero_()
    return rows


DEGENERATE = (
    without_negatives,
    one_row,
    equal_captions,
    least_scale,
    greatest_scale,
    no_embeddings,
)
# A softmax over the batch, and what compares a row with its own negatives alone.
CONTRAST = {"clip", "real", "negclip", "contrastive"}
OF_NEGATIVES = {"s_neg", "local_hn", "global_hn"}


@every_method
@pytest.mark.parametrize("degenerate", DEGENERATE, ids=lambda case: case.__name__)
def test_a_degenerate_batch_has_a_finite_loss_and_gradient(
    name: str,
    degenerate: Callable[[list[Example], LoadedModel], list[Example]],
    world: Any,
    context: ViewContext,
    tiny: LoadedModel,
) -> None:
    kind = method_type(name)
    method = kind(kind.views_type(), kind.objective_type(trains=("image", "text")))
    loaded = tiny if method.bias is None else give_bias(tiny, method.bias)
    views = method.views(world.captions, context)
    captions = {caption.sample_id: caption for caption in world.captions}
    rows = [Example(captions[view.sample_id], view) for view in islice(views, 4)]
    batch, _ = method.collate(degenerate(rows, loaded), 0, ModelPreprocessor(loaded, world.root))
    losses, total = trained_on(method, loaded, batch)
    assert total.isfinite()
    gradients = [one.grad for one in loaded.model.parameters() if one.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    softmax = CONTRAST & losses.keys() if method.bias is None else set()
    if degenerate is one_row and name == "clip":
        assert total == 0 and not any(gradient.any() for gradient in gradients)
    if degenerate is without_negatives:
        assert all(losses[term] == 0 for term in OF_NEGATIVES & losses.keys())
    if degenerate in (equal_captions, no_embeddings):
        assert all(losses[term] >= 0.999 * math.log(len(rows)) / 2 for term in softmax)


@pytest.mark.parametrize(
    ("name", "objective"), [*((name, {}) for name in METHODS), ("c2lip", {"phrases": "tokens"})]
)
def test_a_weight_of_zero_leaves_a_loss_out_and_what_it_reads(
    name: str, objective: dict[str, Any], world: Any, context: ViewContext, tiny: LoadedModel
) -> None:
    """Of the base, too; the other losses are as they were. The first one is always there."""

    def losses(**changes: Any) -> dict[str, float]:
        chosen = kind.objective_type(trains=("image", "text"), **objective, **changes)
        method = kind(kind.views_type(), chosen)
        loaded = tiny if method.bias is None else give_bias(tiny, method.bias)
        views = islice(method.views(world.captions, context), 4)
        rows = [Example(captions[view.sample_id], view) for view in views]
        batch, _ = method.collate(rows, 0, ModelPreprocessor(loaded, world.root))
        return trained_on(method, loaded, batch)[0]

    kind = method_type(name)
    captions = {caption.sample_id: caption for caption in world.captions}
    every, weights = losses(), getattr(kind.objective_type(), "weights", None)
    for left_out in list(vars(weights))[1:] if weights else ():
        found = losses(weights=replace(weights, **{left_out: 0.0}))
        expected = {term: value for term, value in every.items() if term != left_out}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
