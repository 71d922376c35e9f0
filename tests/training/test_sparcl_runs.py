"""SPARCL trained: ablations by configuration alone, what stays, and broken runs that go on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from compo_pipeline.core.records import Counterfactual
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Method, ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.sparcl import Sparcl, SparclObjective
from compo_pipeline.methods.views import by_sample, write
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.settings import LowRankSettings

ROLES = ("negative", "positive")
Terms = dict[str, tuple[float, float]]
Configured = Callable[..., Method]


@pytest.fixture(scope="module")
def made(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Counterfactual]]:
    """Images of edits, and their rows: the first sample has texts alone, the second nothing."""
    folder, noise = tmp_path_factory.mktemp("made"), np.random.default_rng(1)
    rows = []
    for number, caption in enumerate(world.captions):
        for role, word in zip(ROLES, ("no", "yes"), strict=True):
            name = f"{caption.sample_id}.{role}.png"
            pixels = noise.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name)
            text = f"{word} {caption.sentences[0]}" if number != 1 else ""
            image = name if number > 1 else ""
            edit = caption.sample_id, 0, caption.sentences[0], role, text, image
            rows.append(Counterfactual(*edit, "editor", "generator", "0", "generated", ""))
    return folder, rows


@pytest.fixture(scope="module")
def configured(project: Path) -> Configured:
    """A method as shipped, both towers trained, with some of its objective changed."""

    def change(name: str, **changes: Any) -> Method:
        path = project / "conf" / "base" / "parameters_methods" / f"{name}.yml"
        shipped = build(name, **yaml.safe_load(path.read_text())[name]).configuration
        values = shipped["objective"] | {"trains": ["image", "text"]}
        for key, given in changes.items():
            values[key] = {**values[key], **given} if isinstance(given, Mapping) else given
        return build(name, {}, values)

    return change


@pytest.fixture
def plan(
    world: Any,
    made: tuple[Path, list[Counterfactual]],
    tiny_clip: Path,
    recipe: Any,
    tmp_path: Path,
) -> TrainingInputs:
    """Six steps of four rows, over views of two epochs."""
    views, method = tmp_path / "views", Sparcl(Sparcl.views_type(), SparclObjective())
    write(method, world.captions, ViewContext({}, "hand", 0, 0, by_sample(made[1])), 2, views)
    model = ModelSettings(f"local-dir:{tiny_clip}")
    settings = recipe(epochs=2, save_every=2)
    inputs = world.captions, "data", views, world.root, model, settings
    return TrainingInputs(*inputs, 0, tmp_path / "resume", made[0])


def first_losses(plan: TrainingInputs, method: Method, name: str) -> dict[str, float]:
    """Of the first step, from the same weights for all."""
    alone = replace(plan, resume=plan.resume / name)
    curve = train(alone, Job(method, name, alone.resume / "out"), lambda _: None).curve
    return {key: value for key, value in curve[0].items() if key in ("contrastive", "margin")}


def test_ablations_are_a_matter_of_configuration(
    plan: TrainingInputs, configured: Configured
) -> None:
    """Each changes its own loss and leaves the other as it was; images decide both."""
    full = first_losses(plan, configured("sparcl"), "full")
    assert set(full) == {"contrastive", "margin"} and all(full.values())
    fixed = configured("sparcl", margins={"adaptive": False})
    found = first_losses(plan, fixed, "fixed")
    assert found["contrastive"] == full["contrastive"] and found["margin"] != full["margin"]
    plain = first_losses(plan, configured("sparcl", weights={"margin": 0.0}), "plain")
    assert plain == {"contrastive": full["contrastive"]}
    texts = first_losses(plan, configured("sparcl", images=False), "texts")
    assert all(texts[name] != full[name] for name in full)


@pytest.mark.parametrize("rank", [None, 2])
def test_scale_and_bias_stay_as_they_are(
    plan: TrainingInputs, configured: Configured, tiny_clip: Path, rank: int | None
) -> None:
    """With adapters, and where the weights themselves train; so do the control's."""
    plan = replace(plan, settings=replace(plan.settings, lora=LowRankSettings(rank)))
    method = configured("sparcl", bias=-3.0)
    weights = {}
    for name, learner in (("sparcl", method), ("control", control_of(method))):
        train(plan, Job(learner, name, plan.resume / name), lambda _: None)
        weights[name] = load_file(plan.resume / name / "open_clip_model.safetensors")
    base = load_file(tiny_clip / "open_clip_model.safetensors")
    found = weights["sparcl"]
    assert found["logit_bias"].item() == -3.0
    assert torch.equal(found["logit_scale"], base["logit_scale"])
    moved = {key for key in base if not torch.equal(base[key], found[key])}
    assert any(key.startswith("visual.") for key in moved)
    assert any(key.startswith("transformer.") for key in moved)
    # What is not trained beside it would be another comparison.
    assert weights["control"]["logit_bias"].item() == -3.0
    assert torch.equal(weights["control"]["logit_scale"], base["logit_scale"])
