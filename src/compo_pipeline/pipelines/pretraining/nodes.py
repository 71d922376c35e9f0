"""Nodes of the pipeline `pretraining`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from compo_pipeline.artefacts import text_tower as base
from compo_pipeline.artefacts.image_tower import build, train_tower, with_tower
from compo_pipeline.artefacts.settings import PretrainingSettings
from compo_pipeline.compute import Compute, resolve
from compo_pipeline.models.export import export
from compo_pipeline.scenes.dataset import SceneSettings


def train_image_tower(pretraining: PretrainingSettings, scenes: SceneSettings, folder: str) -> Path:
    """The image tower, taught by the renderer's ground truth."""
    compute, seed = _compute(pretraining), pretraining.seed
    loaded = build(seed, compute.device)
    state = Path(folder) / "tower.safetensors"
    world = scenes.world.world()
    train_tower(loaded, world, pretraining.tower, compute, seed=seed, state=state)
    return Path(folder)


def train_base_model(
    tower: Path, pretraining: PretrainingSettings, scenes: SceneSettings, folder: str
) -> tuple[Path, dict[str, Any]]:
    """The whole base model, and what linear readouts recover from its embedding."""
    compute, world, seed = _compute(pretraining), scenes.world.world(), pretraining.seed
    loaded = build(seed, compute.device)
    readouts = with_tower(loaded, tower / "tower.safetensors", world)
    curve = base.train_base(loaded, readouts, world, pretraining.base, compute, seed=seed)
    count = pretraining.probed
    shown = list(itertools.islice(world.scenes(seed, "train", "probe"), count))
    unseen = list(itertools.islice(world.scenes(seed, "val", "probe", 2), count))
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


def _compute(settings: PretrainingSettings) -> Compute:

    return resolve(settings.device, settings.precision, key="pretraining")
