"""The page of recaptions: old beside new, escaped, and never stopped by an image."""

import re
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.datasets.recaption.recaptioning import Recaptioning
from compo_pipeline.presentation.recaptions_page import COUNT, write
from compo_pipeline.storage.records import Recaption, Rejected
from compo_pipeline.storage.tables import Table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image.new("RGB", (80, 60), "red").save(tmp_path / "a.png")
    return tmp_path


def page(root: Path, rows: int, refused: int, dry_run: int | None = None) -> str:
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
    tables = Table.of(captions, Recaption), Table.of(rejected, Rejected)
    file = root / "out" / "recaptions.html"
    return write(Recaptioning(*tables, report), dry_run, root, file, "mine").read_text()


def test_old_and_new_stand_side_by_side(root: Path) -> None:
    html = page(root, 2, 1)
    shown = [
        " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<img[^>]*>", "[image]", one)).split())
        for one in re.findall(r"<article.*?</article>", html, re.DOTALL)
    ]
    assert shown[0] == (
        "gone.png image missing: no file at &#39;gone.png&#39; "
        "new New &lt;b&gt;0&lt;/b&gt;. old: none"
    )
    assert shown[1] == (
        "a.png image [image] new New &lt;b&gt;1&lt;/b&gt;. old old &lt;i&gt;1&lt;/i&gt; older"
    )
    assert shown[2] == "a.png too long image [image] &lt;u&gt;0&lt;/u&gt;"
    assert "a &lt;model&gt;" in html and "What &amp; why?" in html
    assert "2026-01-01 to 2026-01-02" in html
    assert "2 of 3 images have a new caption; 1 have none" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html) and "http" not in html
    assert "dry run" not in html


def test_fifty_are_shown(root: Path) -> None:
    html = page(root, COUNT + 20, 30)
    assert html.count("<h2>new</h2>") == COUNT == 50
    assert html.count('<article class="card">') == COUNT + 20
    assert f"{COUNT} are shown, drawn at random" in html


def test_a_dry_run_says_so(root: Path) -> None:
    assert "A dry run of 3 images" in page(root, 3, 0, dry_run=3)


def test_a_page_of_rejected_images_alone(root: Path) -> None:
    html = page(root, 0, 2)
    assert "0 of 2 images have a new caption" in html and "Without a new caption" in html
