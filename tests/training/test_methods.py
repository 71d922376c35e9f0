"""What the loop relies on, of every method of the registry."""

from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from compo_pipeline.compute import Compute
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.registry import METHODS, method_type
from compo_pipeline.methods.views import by_sample, write
from compo_pipeline.models.loading import LoadedModel, give_bias
from compo_pipeline.records import Counterfactual
from compo_pipeline.training.batches import Batches, ModelPreprocessor
from compo_pipeline.training.features import ModelEncoder
from compo_pipeline.training.optimisation import freeze

every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture
def method(name: str) -> Method:
    kind = method_type(name)
    return kind(kind.views_type(), kind.objective_type(trains=("text",)))


@pytest.fixture
def context(world: Any) -> ViewContext:
    edits = [
        Counterfactual(
            *(row.sample_id, 0, row.sentences[0], role, f"{word} {row.sentences[0]}"),
            *("", "editor", "generator", "0", "generated", ""),
        )
        for row in world.captions
        for role, word in (("negative", "no"), ("positive", "yes"))
    ]
    return ViewContext(world.parses, "hand", 0, 0, by_sample(edits))


@every_method
def test_views_are_the_same_each_time_and_in_the_captions_order(
    method: Method, world: Any, context: ViewContext
) -> None:
    views = list(method.views(world.captions, context))
    assert views == list(method.views(world.captions, context))
    order = [caption.sample_id for caption in world.captions]
    shown = [order.index(view.sample_id) for view in views]
    assert shown == sorted(set(shown)) and len(shown) > 1


@every_method
def test_a_batch_is_the_same_each_time_and_trains_the_method_s_towers_alone(
    method: Method, world: Any, context: ViewContext, tiny: LoadedModel, tmp_path: Path
) -> None:
    write(method, world.captions, context, 1, tmp_path / "views")
    loaded = tiny if method.bias is None else give_bias(tiny, method.bias)
    preprocessor = ModelPreprocessor(loaded, world.root)
    inputs = (world.captions, tmp_path / "views", method, preprocessor)
    batches = Batches(*inputs, batch_size=4, epochs=1, seed=0)
    batch, counts = batches[0]
    again = ForkingPickler.loads(ForkingPickler.dumps(batches))[0]  # as a worker process gets it
    assert all(torch.equal(one, other) for one, other in zip(batch, again.batch, strict=True))
    assert counts == again.counts and counts["rows"] == 4
    shown = {image for row in batches.examples(0) for image in method.images(row, 0)}
    assert shown <= set(batches.images())

    freeze(loaded.model, method.trains, scale=method.trains_scale)
    compute = Compute(torch.device("cpu"), "fp32")
    terms = method.loss(ModelEncoder(loaded.model, loaded.name, None, False, compute), batch)
    total = torch.stack([weight * value for value, weight in terms.values()]).sum()
    assert total.isfinite() and total.ndim == 0
    total.backward()
    got = {name for name, one in loaded.model.named_parameters() if one.grad is not None}
    assert got and not any(name.startswith("visual.") for name in got)
    assert ("logit_scale" in got) == method.trains_scale
