"""The page of counterfactuals: complete, and never stopped by an image."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.records import Caption, Counterfactual
from compo_pipeline.pages.counterfactuals_page import counterfactuals_page
from compo_pipeline.pages.pages import Cards, Page, Table

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


def page(folders: tuple[Path, Path], *rows: Counterfactual, count: int = 40) -> Page:
    captions = [replace(CAPTION, sample_id=row.sample_id) for row in rows]
    return counterfactuals_page(rows, captions, *folders, "a dataset", count)


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


def test_failures_are_counted_by_reasons_without_quoted_texts_and_numbers(
    folders: tuple[Path, Path],
) -> None:
    details = (
        "asked 2 times; keeps less than half of the caption's words ('A dog')",
        "asked 3 times; keeps less than half of the caption's words (\"It's\")",
        "asked 3 times; more than one line ('A\\nB')",
    )
    rows = [replace(POSITIVE, sample_id=f"s{n}", detail=one) for n, one in enumerate(details)]
    rows.append(replace(NEGATIVE, sample_id="s9"))
    edits, reasons = (one for one in page(folders, *rows).sections if isinstance(one, Table))
    lines = {line[0].text: [cell.text for cell in line[1:]] for line in edits.lines}
    assert lines["negative"] == ["1", "0", "0 (0.0%)", "colour 1"]
    assert lines["positive"] == ["0", "0", "3 (100.0%)", "failed 3"]
    told = [(line[1].text, line[2].text) for line in reasons.lines]
    assert told == [
        ("2", "asked ... times; keeps less than half of the caption's words (...)"),
        ("1", "asked ... times; more than one line (...)"),
    ]
