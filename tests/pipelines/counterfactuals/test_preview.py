"""The page of counterfactuals: complete, escaped, and never stopped by a picture."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.pipelines.counterfactuals.preview import write
from compo_pipeline.records import Caption, Counterfactual

CAPTION = Caption("s0", "s0", "real.png", 8, 6, ("A red <cat> sits.", "More."), "t", "train")
NEGATIVE = Counterfactual(
    *("s0", 0, "negative", "A blue <cat> sits.", "made.png", "rules", "painter", "abc123", "made"),
    "colour: red > blue",
)
POSITIVE = replace(NEGATIVE, role="positive", text="A <cat> in red sits.", image="", state="failed")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    real, made = tmp_path / "real", tmp_path / "made"
    for folder, colour in ((real, "red"), (made, "blue")):
        folder.mkdir()
        Image.new("RGB", (800, 600), colour).save(folder / f"{folder.name}.png")
    return real, made


def page(tmp_path: Path, folders: tuple[Path, Path], *rows: Counterfactual, **options: int) -> str:
    captions = [replace(CAPTION, sample_id=row.sample_id) for row in rows]
    file = tmp_path / "out" / "index.html"
    return write(rows, captions, *folders, file, "a dataset", **options).read_text()


def test_real_and_made_stand_side_by_side(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    failed = replace(POSITIVE, detail="no <paint>")
    html = page(tmp_path, folders, NEGATIVE, failed)
    assert "A red &lt;cat&gt; sits." in html
    assert "A <mark>blue</mark> &lt;cat&gt; sits." in html
    assert "A &lt;cat&gt; <mark>in red</mark> sits." in html
    assert "colour: red &gt; blue" in html
    assert "failed: no &lt;paint&gt;" in html
    assert html.count("<img") == 2 and html.count("no picture</div>") == 1
    assert "Counterfactuals of a dataset" in html and "<code>abc123</code>" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html) and "http" not in html


def test_failures_are_counted_with_their_reasons(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    rows = [
        replace(row, sample_id=f"s{n}")
        for n in range(3)
        for row in (NEGATIVE, replace(POSITIVE, text="", detail="no words"))
    ]
    html = page(tmp_path, folders, *rows)
    counts = re.findall(r"<tr><td>(\w+)</td><td>(\d)</td><td>(\d)</td><td>(\d)</td></tr>", html)
    assert counts == [("negative", "3", "0", "0"), ("positive", "0", "0", "3")]
    assert '<tr><td>positive</td><td>3</td><td class="told">no words</td></tr>' in html


def test_a_picture_that_cannot_be_read_is_told_in_its_place(
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
