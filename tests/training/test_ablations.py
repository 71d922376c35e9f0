"""Every ablation of the paper (Tables 6, 10 to 13) is a matter of configuration alone.

Each starts from the shipped parameters_methods/clic.yml, runs views, batches and losses on a tiny
model and is recognised by what comes out.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from compo_pipeline.core.compute import Compute
from compo_pipeline.core.records import View
from compo_pipeline.core.settings import parse
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.clic import Clic, ClicBatch, ClicObjective, ClicViews
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import ViewSettings, write
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.optimisation import freeze
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import TrainingSettings

ALL = {"contrastive", "s_neg", "unimodal"}
SINGLE = {"images": "single", "swap": "within"}


@dataclass(frozen=True)
class Ablation:
    """What is configured, and what must come of it."""

    views: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    terms: frozenset[str] = frozenset(ALL)
    positives: int = 2  # of conf/base; the paper's 4 are in conf/coco
    clip_steps: bool = True
    kind: str = "composite"
    trains: frozenset[str] = frozenset({"text"})


def composite(positives: int, *terms: str, clip_steps: bool = False) -> Ablation:
    weights = {name: 0.0 for name in ("s_neg", "unimodal") if name not in terms}
    objective = {"positives": positives, "clip_steps": clip_steps, "weights": weights}
    kept = frozenset({"contrastive", *terms})
    return Ablation({}, objective, kept, positives, clip_steps)


def single(positives: int, *terms: str, clip_steps: bool = False) -> Ablation:
    """The unimodal weight stays as shipped: single images must not have that loss anyway."""
    weights = {} if "s_neg" in terms else {"s_neg": 0.0}
    objective = {"positives": positives, "clip_steps": clip_steps, "weights": weights}
    kept = frozenset({"contrastive", *terms})
    return Ablation(SINGLE, objective, kept, positives, clip_steps, "single")


def trained(*towers: str) -> Ablation:
    return Ablation(objective={"trains": list(towers)}, trains=frozenset(towers))


ABLATIONS = {
    "C1": composite(1),
    "C2": composite(1, "s_neg"),
    "C3": composite(4, "s_neg"),
    "C4": composite(4, "s_neg", "unimodal"),
    "C5": Ablation(),
    "B1": single(1),
    "B2": single(1, "s_neg"),
    "B3": single(4, "s_neg"),
    "B4": single(4, "s_neg", clip_steps=True),
    "one positive": Ablation(
        objective={"positives": 1}, terms=frozenset({"contrastive", "s_neg"}), positives=1
    ),
    "five positives": Ablation(objective={"positives": 5}, positives=5),
    "frozen image tower": trained("text"),
    "frozen text tower": trained("image"),
    "nothing frozen": trained("image", "text"),
    "partners that share a noun": Ablation({"partners": "shared_noun"}),
    "the authors' occurrences": Ablation({"occurrence": "all"}),
    "the paper's norm": Ablation(objective={"unimodal_norm": "plain"}),
}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Kedro's soft merge."""
    both = dict(base)
    for key, value in over.items():
        inner = isinstance(value, Mapping)
        both[key] = merged(base[key], value) if inner else value
    return both


@pytest.fixture(scope="module")
def shipped(project: Path) -> dict[str, Any]:
    """The method's settings of conf/base, with their defaults."""
    path = project / "conf" / "base" / "parameters_methods" / "clic.yml"
    return build("clic", **yaml.safe_load(path.read_text())["clic"]).configuration


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablation(
    name: str, shipped: dict[str, Any], world: Any, tiny: LoadedModel, tmp_path: Path
) -> None:
    wanted = ABLATIONS[name]
    views = parse(ClicViews, merged(shipped["views"], wanted.views), "clic.views")
    objective = parse(
        ClicObjective, merged(shipped["objective"], wanted.objective), "clic.objective"
    )
    method, folder = Clic(views, objective), tmp_path / "views"
    write(method, world.captions, ViewContext(world.parses, "hand", 0, 0), 1, folder)
    reader = ModelPreprocessor(tiny, world.root)
    batches = Batches(world.captions, folder, method, reader, batch_size=6, epochs=1, seed=0)
    freeze(tiny.model, method.trains)
    encoder = ModelEncoder(
        tiny.model, tiny.name, None, "image" in method.trains, Compute(torch.device("cpu"), "fp32")
    )

    even, odd = (method.loss(encoder, batches[step].batch) for step in (0, 1))

    assert set(even) == wanted.terms
    assert set(odd) == ({"clip"} if wanted.clip_steps else wanted.terms)
    assert all(torch.isfinite(term.value) for term in (*even.values(), *odd.values()))
    batch = batches[0].batch
    assert isinstance(batch, ClicBatch) and len(batch.positives) == 6 * wanted.positives
    rows = batches.examples(0)
    assert {row.view.kind for row in rows} == {wanted.kind}
    expected = views.swap if wanted.kind == "composite" else "within"
    origins = [
        json.loads(row.view.provenance)["negatives"][0] for row in rows if any(row.view.negatives)
    ]
    assert {origin["generator"] for origin in origins} == {f"swap_{expected}"}
    sum(term.value for term in even.values()).backward()
    moved = {
        "image" if key.startswith("visual.") else "text"
        for key, parameter in tiny.model.named_parameters()
        if parameter.grad is not None and key != "logit_scale"
    }
    assert moved == wanted.trains == method.trains


def test_single_views_hold_the_first_sentence_twice_then_others(
    shipped: dict[str, Any], world: Any
) -> None:
    """Ablation B3: s1, s1, s2, s3."""
    method = Clic(parse(ClicViews, merged(shipped["views"], SINGLE), "clic.views"), ClicObjective())
    for view in method.views(world.captions, ViewContext(world.parses, "hand", 0, 0)):
        sentences = {row.sample_id: row.sentences for row in world.captions}[view.sample_id]
        assert view.positives[:2] == (sentences[0], sentences[0])
        assert len({*view.positives[2:4], *sentences[1:]}) == 3 and len(view.positives) == 5


@pytest.mark.parametrize("epochs", [3])
def test_epochs(epochs: int, context: Any, world: Any, tiny: LoadedModel, tmp_path: Path) -> None:
    """As many tables as epochs, each drawn afresh, and a pass over the rows for each."""
    params, over = context().params, {"epochs": epochs}
    views = parse(ViewSettings, merged(params["views"], over), "views")
    training = parse(TrainingSettings, merged(params["training"], over), "training")
    method, folder = Clic(ClicViews(), ClicObjective()), tmp_path / "views"
    write(method, world.captions, ViewContext(world.parses, "hand", 0, 0), views.epochs, folder)
    tables = [list(Table(View, pq.read_table(file))) for file in sorted(folder.iterdir())]
    assert len(tables) == epochs
    assert all(one != two for one, two in itertools.pairwise(tables))
    batches = Batches(
        *(world.captions, folder, method, ModelPreprocessor(tiny, world.root)),
        batch_size=6,
        epochs=training.epochs,
        seed=0,
    )
    assert len(batches) == 2 * epochs
    for epoch in range(epochs):
        rows = [row.view for step in (0, 1) for row in batches.examples(2 * epoch + step)]
        assert sorted(rows, key=lambda row: row.sample_id) == tables[epoch]
