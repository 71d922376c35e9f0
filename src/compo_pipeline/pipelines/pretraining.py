"""Pipeline `pretraining`: the base model `scenes-base`, trained on rendered scenes alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.configuration import parse

if TYPE_CHECKING:
    from compo_pipeline.artefacts.settings import PretrainingSettings
    from compo_pipeline.compute import Compute
    from compo_pipeline.scenes.world import World


def train_image_tower(
    pretraining: Mapping[str, Any], scenes: Mapping[str, Any], folder: str
) -> Path:
    """The image tower, taught by the renderer's ground truth."""
    from compo_pipeline.artefacts.image_tower import build, train_tower

    settings, world = _settings(pretraining, scenes)
    compute = _compute(settings)
    loaded = build(settings.seed, compute.device)
    state = Path(folder) / "tower.safetensors"
    train_tower(loaded, world, settings.tower, compute, seed=settings.seed, state=state)
    return Path(folder)


def train_base_model(
    tower: Path, pretraining: Mapping[str, Any], scenes: Mapping[str, Any], folder: str
) -> tuple[Path, dict[str, Any]]:
    """The whole base model, and what linear readouts recover from its embedding."""
    from compo_pipeline.artefacts import text_tower as base
    from compo_pipeline.artefacts.image_tower import build, with_tower
    from compo_pipeline.models.export import export

    settings, world = _settings(pretraining, scenes)
    compute = _compute(settings)
    loaded = build(settings.seed, compute.device)
    readouts = with_tower(loaded, tower / "tower.safetensors", world)
    curve = base.train_base(loaded, readouts, world, settings.base, compute, seed=settings.seed)
    shown = list(itertools.islice(world.scenes(settings.seed, "train", "probe"), settings.probed))
    unseen = list(itertools.islice(world.scenes(settings.seed, "val", "probe", 2), settings.probed))
    probes = base.probe(
        base.embed_scenes(loaded, shown, compute, "embedding scenes to probe"),
        shown,
        base.embed_scenes(loaded, unseen, compute, "embedding unseen scenes"),
        unseen,
        world,
    )
    metadata = {"linear probes": probes, "compute": compute.facts()}
    export(loaded, Path(folder), precision="fp16", metadata=metadata)
    return Path(folder), {"linear probes": probes, "curve": curve}


def _settings(
    pretraining: Mapping[str, Any], scenes: Mapping[str, Any]
) -> tuple[PretrainingSettings, World]:
    from compo_pipeline.artefacts.settings import PretrainingSettings
    from compo_pipeline.scenes.dataset import SceneSettings

    world = parse(SceneSettings, scenes, "scenes").world.world()
    return parse(PretrainingSettings, pretraining, "pretraining"), world


def _compute(settings: PretrainingSettings) -> Compute:
    from compo_pipeline.compute import resolve

    return resolve(settings.device, settings.precision, key="pretraining")


def create_pipeline() -> Pipeline:
    """Nothing but scenes to the base model that the package ships."""
    return Pipeline(
        [
            node(
                train_image_tower,
                inputs=["params:pretraining", "params:scenes", "params:paths.image_tower"],
                outputs="image_tower",
                name="train_image_tower",
            ),
            node(
                train_base_model,
                inputs=[
                    "image_tower",
                    "params:pretraining",
                    "params:scenes",
                    "params:paths.base_model",
                ],
                outputs=["base_model", "pretraining_report"],
                name="train_base_model",
            ),
        ]
    )
