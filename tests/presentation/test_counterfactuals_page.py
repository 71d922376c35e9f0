"""The page of counterfactuals: complete, escaped, and never stopped by an image."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.presentation.counterfactuals_page import LEAST, write
from compo_pipeline.storage.records import Caption, Counterfactual

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
POSITIVE = replace(NEGATIVE, role="positive", text="A <cat> in red sits.", image="", state="failed")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    real, made = tmp_path / "real", tmp_path / "made"
    for folder, colour in ((real, "red"), (made, "blue")):
        folder.mkdir()
        Image.new("RGB", (80, 60), colour).save(folder / f"{folder.name}.png")
    return real, made


def page(tmp_path: Path, folders: tuple[Path, Path], *rows: Counterfactual, **options: int) -> str:
    captions = [replace(CAPTION, sample_id=row.sample_id) for row in rows]
    file = tmp_path / "out" / "index.html"
    return write(rows, captions, *folders, file, "a dataset", **options).read_text()


def test_real_and_made_stand_side_by_side(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    failed = replace(POSITIVE, detail="no <paint>")
    html = page(tmp_path, folders, NEGATIVE, failed)
    real, negative, positive = columns(html)
    assert real == "real [image] A red &lt;cat&gt; sits."
    assert negative == (
        "negative: colour: red &gt; blue [image] "
        "A <mark>blue</mark> &lt;cat&gt; sits. instead of: red"
    )
    assert positive == (
        "positive no image A &lt;cat&gt; <mark>in red</mark> sits. instead of: red "
        "failed: no &lt;paint&gt;"
    )
    assert "Counterfactuals of a dataset" in html and "<code>abc123</code>" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html) and "http" not in html


def columns(html: str) -> list[str]:
    """What stands in each column of the cards, without other tags than marks."""
    found = re.findall(r'<section class="one[^>]*>(.*?)</section>', html, re.DOTALL)
    shown = [re.sub(r"<img[^>]*>", "[image]", one) for one in found]
    return [" ".join(re.sub(r"<(?!/?mark)[^>]*>", " ", one).split()) for one in shown]


def test_words_that_are_only_gone_are_told(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    html = page(tmp_path, folders, replace(NEGATIVE, text="A <cat> sits."))
    assert columns(html)[1].endswith("A &lt;cat&gt; sits. instead of: red")


def test_without_an_image_generator_no_place_is_kept_for_images(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    written = replace(NEGATIVE, image_generator="", image="", state="edited")
    html = page(tmp_path, folders, written)
    assert "No images were generated." in html and html.count('class="frame') == 1
    assert columns(html)[1].startswith("negative: colour: red &gt; blue A <mark>")
    assert "were generated" not in page(tmp_path, folders, NEGATIVE)


def test_failures_are_counted_with_their_reasons(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    rows = [
        replace(row, sample_id=f"s{n}")
        for n in range(3)
        for row in (NEGATIVE, replace(POSITIVE, text="", detail="no words"))
    ]
    html = page(tmp_path, folders, *rows)
    rows_shown = [re.sub("<[^>]*>", " ", one).split() for one in re.findall("<tr>.*?</tr>", html)]
    assert ["negative", "3", "0", "0", "(0.0%)", "colour", "3"] in rows_shown
    assert ["positive", "0", "0", "3", "(100.0%)", "failed", "3"] in rows_shown
    assert "no words" in html
    assert "counterfactuals_quarantine" in html
    assert "counterfactuals_quarantine" not in page(tmp_path, folders, NEGATIVE)


def test_failures_that_differ_in_quoted_texts_and_numbers_are_one_reason(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    details = (
        "asked 2 times; keeps less than half of the caption's words ('A dog')",
        "asked 3 times; keeps less than half of the caption's words (\"It's\")",
        "asked 3 times; more than one line ('A\\nB')",
    )
    rows = [replace(POSITIVE, sample_id=f"s{n}", detail=one) for n, one in enumerate(details)]
    html = page(tmp_path, folders, *rows)
    told = re.findall(r'<td>(\d)</td><td class="words">(.*?) \(for example: ', html)
    assert told == [
        ("2", "asked ... times; keeps less than half of the caption&#39;s words (...)"),
        ("1", "asked ... times; more than one line (...)"),
    ]


def test_some_of_each_kind_are_shown_however_rare(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    """Two rare kinds beside a common one, one of them with fewer edits than are wanted."""
    kinds = ["common"] * 60 + ["rare"] * 6 + ["single"]
    rows = [replace(NEGATIVE, sample_id=f"s{n}", detail=kind) for n, kind in enumerate(kinds)]
    html = page(tmp_path, folders, *rows, count=10)
    shown = Counter(re.findall(r"<h2>negative: (\w+)</h2>", html))
    assert shown["rare"] >= LEAST and shown["single"] == 1
    assert 10 <= shown.total() <= 10 + LEAST + 1


def test_details_that_are_all_different_do_not_fill_the_page(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    rows = [replace(NEGATIVE, sample_id=f"s{n}", detail=f"draft {n}") for n in range(60)]
    html = page(tmp_path, folders, *rows, count=5)
    assert html.count("<article") <= 5 + 16


def test_an_image_that_cannot_be_read_is_told_in_its_place(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    html = page(tmp_path, folders, replace(NEGATIVE, image="gone.png"))
    assert "missing: no file at &#39;gone.png&#39;" in html and html.count("<img") == 1


def test_some_captions_are_drawn_each_time_the_same(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    rows = [replace(NEGATIVE, sample_id=f"id{n:02d}.") for n in range(30)]
    shown = [re.findall(r"id\d\d\.", page(tmp_path, folders, *rows, count=5)) for _ in range(2)]
    assert len(shown[0]) == 5 and shown[0] == shown[1] == sorted(shown[0])


def test_nothing_to_show(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    assert "There is no counterfactual to show" in page(tmp_path, folders)
