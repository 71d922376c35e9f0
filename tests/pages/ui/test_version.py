"""Scores and attention of a version and its base, and messages about unusable input."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image

from compo_pipeline.data.images.decoding import ImageError, Limits
from compo_pipeline.evaluation.analysis.attention import attend
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.pages.attention_plots import AttentionPanel
from compo_pipeline.pages.ui import page
from compo_pipeline.pages.ui import version as module
from compo_pipeline.pages.ui.version import (
    MAX_CAPTIONS,
    MAX_CHARACTERS,
    CaptionScores,
    InputError,
    VersionPair,
    captions_of,
)

CAPTIONS = ["a red cube", "a blue sphere", "two cats", "a cup on a table", "nothing"]
Cosines = Callable[[LoadedModel, Image.Image, list[str]], list[float]]


@pytest.fixture
def pair(models: tuple[LoadedModel, LoadedModel]) -> VersionPair:
    return VersionPair("tried", 1, "CLIC", "champion", *models)


def test_scores_are_the_models_own(
    pair: VersionPair, image: Path, pixels: Image.Image, cosines: Cosines
) -> None:
    lines = pair.scores(image, CAPTIONS)
    base = cosines(pair.base, pixels, CAPTIONS)
    tuned = cosines(pair.tuned, pixels, CAPTIONS)
    assert [line.caption for line in lines] == CAPTIONS
    assert [line.base for line in lines] == pytest.approx(base, abs=1e-6)
    assert [line.tuned for line in lines] == pytest.approx(tuned, abs=1e-6)
    assert [line.best_of_base for line in lines] == [value == max(base) for value in base]
    assert [line.best_of_tuned for line in lines] == [value == max(tuned) for value in tuned]


def test_images_that_cannot_be_used_are_refused(
    pair: VersionPair, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("no image")
    careful = replace(pair, limits=Limits(max_pixels=100))
    for asked, path, reason in ((pair, tmp_path / "text.png", "not_an_image"),
                                (careful, image, "oversized")):  # fmt: skip
        with pytest.raises(ImageError, match=reason):
            asked.scores(path, CAPTIONS)
        with pytest.raises(ImageError, match=reason):
            asked.attention(path, "a cube")


def test_a_caption_longer_than_the_models_read_is_marked(pair: VersionPair, image: Path) -> None:
    lines = pair.scores(image, ["a cube", " ".join(["cube"] * 40)])
    assert [line.truncated for line in lines] == [False, True]


def test_captions_are_lines() -> None:
    assert captions_of("  a cup \n\n two cups\r\na cup\n") == ["a cup", "two cups"]
    with pytest.raises(InputError, match="at least one caption"):
        captions_of(" \n ")
    most = "\n".join(str(k) for k in range(MAX_CAPTIONS))
    assert len(captions_of(most)) == MAX_CAPTIONS
    with pytest.raises(InputError, match=f"at most {MAX_CAPTIONS}"):
        captions_of(f"{most}\none more")
    longest = "x" * MAX_CHARACTERS
    assert captions_of(longest) == [longest]
    with pytest.raises(InputError, match=f"at most {MAX_CHARACTERS}"):
        captions_of(f"a cup\n{longest}x")


def test_maps_are_the_attention_of_both_models(
    pair: VersionPair, image: Path, pixels: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[AttentionPanel] = []
    render = module.render
    monkeypatch.setattr(module, "render", lambda panels: drawn.extend(panels) or render(panels))
    maps = pair.attention(image, "a red cube")
    assert maps.width > 800 and maps.mode == "RGB"
    (panel,) = drawn
    assert (panel.phrase, panel.names) == ("a red cube", ("base", "champion"))
    for loaded, found in ((pair.base, panel.base), (pair.tuned, panel.fine_tuned)):
        (expected,) = attend(loaded, loaded.preprocess(pixels), ["a red cube"])
        np.testing.assert_allclose(found, 4 * expected, rtol=1e-5)


def test_models_without_patches_say_so(pair: VersionPair, image: Path) -> None:
    tower = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    torch.manual_seed(0)
    convolutional = replace(pair.base, model=CLIP(16, tower, text).eval())
    blind = replace(pair, base=convolutional, tuned=convolutional)
    assert all(line.best_of_base == line.best_of_tuned for line in blind.scores(image, CAPTIONS))
    with pytest.raises(NoPatches, match="ModifiedResNet"):
        blind.attention(image, "a red cube")


def test_the_table_marks_the_best_and_holds_text_alone() -> None:
    lines = [
        CaptionScores("<b>a</b>", 0.25, 0.5, False, True, True),
        CaptionScores("b", 0.75, 0.1, True, False, False),
    ]
    shown = page.score_table(lines, "champion")
    assert "&lt;b&gt;a" in shown and "<b>" not in shown
    cells = re.findall(r'<td( class="best")?>([0-9.]+)', shown)
    assert cells == [("", "0.2500"), (' class="best"', "0.5000"), (' class="best"', "0.7500"),
                     ("", "0.1000")]  # fmt: skip
    assert "choose different captions" in shown and shown.count("longer than the models read") == 1
    assert "verdict" not in page.score_table(lines[:1], "champion")
