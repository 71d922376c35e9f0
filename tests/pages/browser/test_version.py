"""Scores and attention of a version and its base, and messages about unusable input."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image

from compo_pipeline.core.settings import PlainError
from compo_pipeline.evaluation.analysis.attention import attend
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.pages.attention_plots import panel_of
from compo_pipeline.pages.try_page import VersionPair, captions_of

CAPTIONS = ["a red cube", "a blue sphere", "two cats", "a cup on a table", "nothing"]
Cosines = Callable[[LoadedModel, Image.Image, list[str]], list[float]]


@pytest.fixture
def pair(models: tuple[LoadedModel, LoadedModel]) -> VersionPair:
    return VersionPair("tried, version 1", "CLIC", "champion", *models)


def cells(table: str) -> list[tuple[bool, float]]:
    """Scores of a table row by row, each with whether it is marked as the best."""
    found = re.findall(r'<td( class="best")?>(-?[0-9.]+)', table)
    return [(bool(best), float(value)) for best, value in found]


def test_scores_are_the_models_own_and_the_best_of_each_is_marked(
    pair: VersionPair, pixels: Image.Image, cosines: Cosines
) -> None:
    found = cells(pair.scores(pixels, CAPTIONS))
    chosen = []
    for column, model in enumerate((pair.base, pair.tuned)):
        own, expected = found[column::2], cosines(model, pixels, CAPTIONS)
        assert [value for _, value in own] == pytest.approx(expected, abs=1e-4)
        assert [best for best, _ in own] == [value == max(expected) for value in expected]
        chosen.append(expected.index(max(expected)))
    said = f"choose {'the same caption' if len({*chosen}) == 1 else 'different captions'}"
    assert said in pair.scores(pixels, CAPTIONS)
    assert "choose the same caption" in replace(pair, tuned=pair.base).scores(pixels, CAPTIONS)


def test_the_table_holds_text_alone_and_marks_long_captions(
    pair: VersionPair, pixels: Image.Image
) -> None:
    shown = pair.scores(pixels, ["<b>a cube</b>", " ".join(["cube"] * 40)])
    assert "&lt;b&gt;a cube" in shown and "<b>" not in shown
    assert shown.count("longer than the models read") == 1
    assert "verdict" not in pair.scores(pixels, ["a cube"])


def test_captions_are_lines() -> None:
    assert captions_of("  a cup \n\n two cups\r\na cup\n") == ["a cup", "two cups"]
    with pytest.raises(PlainError, match="at least one text"):
        captions_of(" \n ")


def test_maps_are_the_attention_of_both_models(pair: VersionPair, pixels: Image.Image) -> None:
    panel = panel_of(pair.base, pair.tuned, pixels, "a red cube")
    for loaded, found in ((pair.base, panel.base), (pair.tuned, panel.fine_tuned)):
        (expected,) = attend(loaded, loaded.preprocess(pixels), ["a red cube"])
        np.testing.assert_allclose(found, 4 * expected, rtol=1e-5)
    drawn = pair.attention(pixels, "a red cube").axes
    assert [ax.get_title("left") for ax in drawn[1:4]] == ["base", "champion", "difference"]
    np.testing.assert_allclose(drawn[2].images[1].get_array(), panel.fine_tuned, rtol=1e-5)


def test_models_without_patches_say_so(pair: VersionPair, pixels: Image.Image) -> None:
    tower = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    torch.manual_seed(0)
    convolutional = replace(pair.base, model=CLIP(16, tower, text).eval())
    blind = replace(pair, base=convolutional, tuned=convolutional)
    assert "choose the same caption" in blind.scores(pixels, CAPTIONS)
    with pytest.raises(NoPatches, match="ModifiedResNet"):
        blind.attention(pixels, "a red cube")
