"""The page of recaptions: old beside new."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.records import Recaption, Rejected
from compo_pipeline.core.tables import Table
from compo_pipeline.generation.recaption.recaptioning import Recaptioning
from compo_pipeline.pages.pages import Page
from compo_pipeline.pages.previews import recaptions_page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image.new("RGB", (80, 60), "red").save(tmp_path / "a.png")
    return tmp_path


def page(root: Path, rows: int, refused: int) -> Page:
    captions = [
        Recaption(
            "a.png" if number % 2 else "gone.png", "h", f"New <b>{number}</b>.",
            (f"old <i>{number}</i>", "older") if number else (), "endpoint", "a <model>",
            "What & why?", f"2026-01-0{1 + number % 2}T00:00:00+00:00",
        )
        for number in range(rows)
    ]  # fmt: skip
    rejected = [
        Rejected(-1, "s", "a.png", "too_long", f"<u>{number}</u>") for number in range(refused)
    ]
    report = {
        "captioner": "endpoint", "model": "a <model>", "prompt": "What & why?",
        "images": rows + refused, "captions": rows, "openings": {"The image shows": 2},
        "rejected": {"too_long": refused} if refused else {},
        "shared_first_sentences": {},
    }  # fmt: skip
    made = Recaptioning(Table.of(captions, Recaption), rejected, report)
    return recaptions_page(made, root, "mine")


def test_the_page(approved: Callable[[str, str], None], root: Path) -> None:
    given = page(root, 2, 1)
    approved("recaptions", str(given.files("recaptions.html")["recaptions.html"]))
    assert given.facts["date"] == "2026-01-01 to 2026-01-02"
    assert given.summary == ["2 of 3 images have a new caption."]
