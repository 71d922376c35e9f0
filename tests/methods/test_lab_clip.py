"""LabCLIP: the map starts as the identity, and is merged into either kind of projection."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from compo_pipeline.methods.registry import build
from compo_pipeline.models.encoding import encode_texts
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.training.optimisation import freeze


@pytest.mark.parametrize("kind", ["tiny_clip", "tiny_siglip"])
def test_texts_are_mapped_and_the_map_is_merged(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    loaded = load(ModelSettings(f"local-dir:{folder}"))
    model, method = loaded.model, build("lab_clip", {}, {"trains": ["text"]})
    names = {name for name, _ in model.named_parameters()}
    tokens = loaded.tokenize(["a red cat", "a dog left of a cat"])
    before = encode_texts(model, tokens)
    merge = method.extend(model, "")
    freeze(model, method.trains, scale=method.trains_scale)
    torch.testing.assert_close(encode_texts(model, tokens), before)
    (trained,) = (one for one in model.parameters() if one.requires_grad)
    trained.data += 0.3 * torch.randn(trained.shape, generator=torch.Generator().manual_seed(0))
    expected = F.normalize(before @ trained.data, dim=-1)
    torch.testing.assert_close(encode_texts(model, tokens), expected)
    merge()
    assert {name for name, _ in model.named_parameters()} == names
    torch.testing.assert_close(encode_texts(model, tokens), expected)
