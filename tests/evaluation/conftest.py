"""Small worlds to score: hand-made embeddings, and a model that encodes in milliseconds."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from compo_pipeline.evaluation.embed import Embedded, Tokens, Vectors

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 32},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def unit(values: Mapping[str, list[float]]) -> Vectors:
    rows = np.array(list(values.values()), dtype=np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return Vectors(rows, {name: place for place, name in enumerate(values)})


@pytest.fixture
def embedded() -> Callable[..., Embedded]:
    """Builds what a model would make of pictures and texts, from vectors given by hand."""

    def build(
        images: Mapping[str, list[float]],
        texts: Mapping[str, list[float]],
        unreadable: Mapping[str, str] | None = None,
    ) -> Embedded:
        names = {text: place for place, text in enumerate(texts)}
        ids = torch.arange(len(texts)).reshape(-1, 1)
        tokens = Tokens(ids, np.zeros(len(texts), dtype=bool), names)
        return Embedded(unit(images), unreadable or {}, unit(texts), tokens)

    return build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a model folder; the text tower differs by seed, the image tower by image_seed."""
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    def write(seed: int, image_seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp("model")
        torch.manual_seed(seed)
        state = CLIP(**TINY).state_dict()
        torch.manual_seed(image_seed)
        visual = {k: v for k, v in CLIP(**TINY).state_dict().items() if k.startswith("visual.")}
        tensors = {k: v.clone().contiguous() for k, v in {**state, **visual}.items()}
        header = {"format": "pt", "quick_gelu": "false"}
        save_file(tensors, folder / "open_clip_model.safetensors", metadata=header)
        config = {"model_cfg": TINY, "preprocess_cfg": {}}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
        return folder

    return write
