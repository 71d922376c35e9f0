"""The architecture of `scenes-base`: what open_clip alone can build, small enough to ship."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from compo_pipeline.artefacts.image_tower import Readouts
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.models.weights import CONFIG_FILE, RECORD_FILE, WEIGHTS_FILE
from compo_pipeline.scenes.world import World

IMAGE_SIZE = 64
WIDTH = 192
MODEL = {
    "embed_dim": WIDTH,
    "vision_cfg": {
        "timm_model_name": "xcit_nano_12_p8_224",
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": IMAGE_SIZE,
    },
    "text_cfg": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 128,
        "heads": 4,
        "layers": 2,
    },
}
# Squashed, not cropped: what lies at the side of a wide image must stay in it.
PREPROCESS = {
    "size": [IMAGE_SIZE, IMAGE_SIZE],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "interpolation": "bicubic",
    "resize_mode": "squash",
}


def build(seed: int, device: torch.device | str = "cpu") -> LoadedModel:
    """The model with seeded random weights, through the same door as every other model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(**MODEL)
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}
        (Path(folder) / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
        (Path(folder) / RECORD_FILE).write_text('{"name": "scenes-base"}', encoding="utf-8")
        save_file(model.state_dict(), Path(folder) / WEIGHTS_FILE)
        return load(Path(folder), device)


def with_tower(loaded: LoadedModel, state: Path, world: World) -> Readouts:
    """Put a trained image tower in place; returns the readouts trained with it, beside it."""
    visual: Any = loaded.model.visual
    projection = visual.head.proj
    readouts = Readouts(world, projection.in_features, WIDTH).to(projection.weight.device)
    tensors = load_file(state)
    for module, prefix in ((visual, "visual/"), (readouts, "readouts/")):
        module.load_state_dict(
            {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        )
    return readouts
