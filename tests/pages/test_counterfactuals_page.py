"""The page of counterfactuals: complete, and never stopped by an image."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.records import Caption, Counterfactual
from compo_pipeline.pages.pages import Cards, Page
from compo_pipeline.pages.previews import counterfactuals_page

CAPTION = Caption("s0", "s0", "real.png", 8, 6, ("A red <cat> sits.", "More."), "t", "train")
NEGATIVE = Counterfactual(
    sample_id="s0",
    sentence=0,
    caption="A red <cat> sits.",
    role="negative",
    text="A blue <cat> sits.",
    image="made.png",
    caption_editor="rules",
    image_generator="painter",
    fingerprint="abc123",
    state="generated",
    detail="colour: red > blue",
)
POSITIVE = replace(NEGATIVE, role="positive", text="A <cat> in red.", image="", state="failed")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    real, made = tmp_path / "real", tmp_path / "made"
    for folder, colour in ((real, "red"), (made, "blue")):
        folder.mkdir()
        Image.new("RGB", (80, 60), colour).save(folder / f"{folder.name}.png")
    return real, made


def page(folders: tuple[Path, Path], *rows: Counterfactual) -> Page:
    captions = [replace(CAPTION, sample_id=row.sample_id) for row in rows]
    return counterfactuals_page(rows, captions, *folders, "a dataset")


def shown(given: Page) -> Cards:
    (cards,) = (each for each in given.sections if isinstance(each, Cards))
    return cards


def test_the_page(approved: Callable[[str, str], None], folders: tuple[Path, Path]) -> None:
    rows = [
        *(NEGATIVE, replace(POSITIVE, detail="no <paint>")),
        replace(NEGATIVE, sample_id="s1", text="A <cat> sits.", image="gone.png"),
    ]
    approved("counterfactuals", str(page(folders, *rows).files("a.html")["a.html"]))
    approved("no_counterfactuals", str(page(folders).files("a.html")["a.html"]))
    alone = replace(NEGATIVE, image_generator="", image="", state="edited")
    (card,) = shown(page(folders, alone)).cards
    assert [side.image is None for side in card.sides] == [False, True], "no place is kept"
