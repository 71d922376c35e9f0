"""Maps of attention, and the phrases and images that they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compo_pipeline.core.records import Caption
from compo_pipeline.evaluation.analysis.attention import Case, attend, find_cases
from compo_pipeline.evaluation.settings import AttentionSettings
from compo_pipeline.models.dense import encode_images_densely
from compo_pipeline.models.loading import LoadedModel, load

ROWS = [
    Caption(f"s{n}", f"i{n}", f"{n}.jpg", 9, 9, (text,), "", split)
    for n, (text, split) in enumerate(
        [("A red ball on a box.", "test"), ("Two cups.", "test"), ("A dog.", "train")]
    )
]


@pytest.fixture(scope="module")
def loaded(tiny_clip: Path) -> LoadedModel:
    """A random model that sees 32 x 32 pixels in 2 x 2 patches."""
    return load(tiny_clip)


def cases(**settings: Any) -> list[Case]:
    return find_cases(AttentionSettings(**settings), ROWS, Path("root"), "compo_en")


def test_phrases_of_a_split_are_those_of_its_captions() -> None:
    found = {(case.image, case.phrase) for case in cases()}
    assert found == {("0.jpg", "A red ball"), ("0.jpg", "a box"), ("1.jpg", "Two cups")}
    assert all(case.root == Path("root") for case in cases())


def test_every_phrase_is_asked_of_every_image_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for name in ("b.jpg", "a.png", ".hidden"):
        (tmp_path / name).write_text("x")
    phrases = " a red shirt; a grey horse;;a red shirt"
    found = {(case.image, case.phrase) for case in cases(images=str(tmp_path), phrases=phrases)}
    texts = ("a red shirt", "a grey horse")
    assert found == {(name, text) for name in ("a.png", "b.jpg") for text in texts}
    one = cases(images=str(tmp_path / "b.jpg"), phrases="a dog")
    assert one == [Case(tmp_path, "b.jpg", "a dog")]


def test_attention_is_a_softmax_over_the_patches(loaded: LoadedModel) -> None:
    pixels = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
    texts = ["a red ball", "two cups"]
    found = attend(loaded, pixels, texts)
    assert found.shape == (2, 2, 2)
    with torch.no_grad():
        patches = encode_images_densely(loaded.model, pixels[None], "tiny").patches[0]
        phrases = loaded.model.encode_text(loaded.tokenize(texts), normalize=True)
    seen = patches / patches.norm(dim=-1, keepdim=True)
    for given, phrase in zip(found, phrases, strict=True):
        weights = np.exp((seen @ phrase).numpy())
        # Row by row: the second patch is the one to the right.
        np.testing.assert_allclose(given, (weights / weights.sum()).reshape(2, 2), rtol=1e-4)
