"""The page of random views: complete, escaped, and never stopped by an image."""

import base64
import io
import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.presentation import pages
from compo_pipeline.presentation.views_page import Heading, write
from compo_pipeline.storage.records import View

HEADING = Heading("a method", "a dataset", epoch=3, seed=7)
ORIGIN = {"generator": "some_rule", "category": "noun_phrase", "words": ["cat", "<dog>"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (800, 600), "red").save(folder / "red.png")
    Image.new("RGB", (800, 600), "blue").save(folder / "blue.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Counterfactual images, under names that real ones have too."""
    folder = tmp_path / "made"
    folder.mkdir()
    Image.new("RGB", (80, 80), "green").save(folder / "red.png")
    return folder


def view(
    *images: str,
    axis: str | None = None,
    positives: tuple[str, ...] = ("a red cat",),
    negatives: tuple[str | None, ...] = ("a red dog",),
    sample_id: str = "s0",
) -> View:
    origins = [text and ORIGIN for text in negatives]
    told = json.dumps({"language": "words==1.0", "negatives": origins})
    kind = "composite" if axis else "single"
    return View(sample_id, kind, (sample_id,), images, axis, positives, negatives, (), (), (), told)


def page(tmp_path: Path, root: Path, *views: View, **options: Any) -> str:
    return write(views, root, tmp_path / "out" / "page.html", HEADING, **options).read_text()


def images(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def test_a_view_is_told_whole(tmp_path: Path, root: Path) -> None:
    html = page(tmp_path, root, view("red.png"))
    assert "a red cat" in html
    assert "a red <mark>dog</mark>" in html and "noun phrase: cat | &lt;dog&gt;" in html
    assert "some rule" in html and "words==1.0" in html
    assert (
        "Views of a method on a dataset" in html
        and "<dt>epoch</dt><dd>3</dd>" in html
        and "<dt>seed</dt><dd>7</dd>" in html
    )
    (image,) = images(html)
    assert image.size == (320, 240)


def test_the_page_needs_nothing_else(tmp_path: Path, root: Path) -> None:
    html = page(tmp_path, root, view("red.png"))
    assert not re.search(r'(?:src|href)="(?!data:)', html)
    assert "http" not in html


def test_texts_are_escaped(tmp_path: Path, root: Path) -> None:
    positives, negatives = ("a <b>cat</b> & more",), ("a <i>cat</i> & more",)
    html = page(tmp_path, root, view("red.png", positives=positives, negatives=negatives))
    assert "<b>" not in html and "<i>" not in html
    assert "a &lt;b&gt;cat&lt;/b&gt; &amp; more" in html


@pytest.mark.parametrize(("axis", "second"), [("vertical", (160, 240)), ("horizontal", (240, 160))])
def test_composites_are_joined_as_training_shows_them(
    tmp_path: Path, root: Path, axis: str, second: tuple[int, int]
) -> None:
    (joined,) = images(page(tmp_path, root, view("red.png", "blue.png", axis=axis)))
    assert joined.size == (320, 320)
    red, _, blue = joined.getpixel((80, 80))
    assert red > 200 > 50 > blue
    red, _, blue = joined.getpixel(second)
    assert blue > 200 > 50 > red


def test_an_image_that_cannot_be_read_is_told_in_its_place(tmp_path: Path, root: Path) -> None:
    html = page(
        tmp_path,
        root,
        view("gone.png", "red.png", axis="vertical"),
        view("broken.png", sample_id="s1"),
        view("../red.png", sample_id="s2"),
    )
    assert html.count("<article") == 3 and len(images(html)) == 1
    assert html.index("missing: no file at &#39;gone.png&#39;") < html.index("<img")
    assert "not_an_image" in html and "out_of_root" in html


def test_a_file_that_cannot_be_opened_stops_nothing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no permission")

    monkeypatch.setattr(pages, "load", refuse)
    assert "no permission" in page(tmp_path, root, view("red.png"))


def test_an_absent_negative_is_told_so_and_counted(tmp_path: Path, root: Path) -> None:
    html = page(
        tmp_path,
        root,
        view("red.png", negatives=(None, "a red dog")),
        view("red.png", negatives=("a red cow", None)),
        view("red.png", negatives=(None, "a red pig")),
    )
    assert html.count("absent: no negative was found") == 3
    assert rows(html) == [
        ["some rule", "1", "2", "noun phrase 1"],
        ["some rule", "2", "1", "noun phrase 2"],
    ]


def test_views_without_negatives(tmp_path: Path, root: Path) -> None:
    html = page(tmp_path, root, view("red.png", negatives=()))
    assert "<mark>" not in html and "<th>absent" not in html


def phrased(caption: str, *phrases: str) -> View:
    spans = [(caption.index(text), caption.index(text) + len(text)) for text in phrases]
    plain = view("red.png", positives=(caption,), negatives=())
    return replace(plain, phrases=phrases, phrase_spans=tuple(chain(*spans)))


def test_a_negative_that_is_a_positive_is_not_shown_as_one(tmp_path: Path, root: Path) -> None:
    texts = ("a dog and a cat", "A cat and  a dog", "a dog and a cat")
    html = page(tmp_path, root, view("red.png", positives=texts, negatives=("a cat and a dog",)))
    assert "no negative: it is one of the positives" in html and 'class="one negative"' not in html
    assert "positive 3 a dog and a cat repeats positive 1" in columns(html)


def test_a_whole_caption_misses_no_negative(tmp_path: Path, root: Path) -> None:
    whole = replace(view("red.png", negatives=(None,)), kind="long")
    assert "no negative was found" not in page(tmp_path, root, whole)


def test_a_random_draw_that_the_seed_decides(tmp_path: Path, root: Path) -> None:
    views = [view("red.png", sample_id=f"id{n:03d}.") for n in range(60)]

    def shown(seed: int, count: int) -> list[str]:
        heading = Heading("m", "d", 0, seed)
        html = write(views, root, tmp_path / "page.html", heading, count=count).read_text()
        return re.findall(r"id\d{3}(?=\.)", html)

    assert len(shown(0, 20)) == 20
    assert shown(0, 20) == shown(0, 20) != shown(1, 20)
    assert shown(0, 20) != [f"id{n:03d}" for n in range(20)]
    assert shown(0, 100) == [f"id{n:03d}" for n in range(60)]


def test_no_view_at_all(tmp_path: Path, root: Path) -> None:
    assert "There is no view to show" in page(tmp_path, root)


def paired(
    *paths: str,
    negative: str | None = "a red dog",
    retold: str | None = "one <red> cat",
    n: int = 0,
) -> View:
    plain = view(
        "red.png",
        positives=("a red cat", retold) if retold else ("a red cat",),
        negatives=(negative,),
        sample_id=f"s{n}",
    )
    return replace(plain, counterfactuals=paths)


def columns(html: str) -> list[str]:
    """What stands in each column of the cards: tags other than images and marks left out."""
    found = re.findall(r'<section class="one[^>]*>(.*?)</section>', html, re.DOTALL)
    kept = [re.sub(r'src="[^"]*"', "", re.sub(r"<(?!img|/?mark)[^>]*>", " ", one)) for one in found]
    return [" ".join(one.split()) for one in kept]


def test_synthetic_pairs_stand_beside_the_real_one(tmp_path: Path, root: Path, made: Path) -> None:
    html = page(tmp_path, root, paired("red.png", "red.png"), counterfactual_images=made)
    real, negative, positive = columns(html)
    assert real.startswith("real <img") and real.endswith("> a red cat")
    assert negative.startswith("negative: noun phrase <img")
    assert negative.endswith("> a red <mark>dog</mark> instead of: cat")
    assert positive.endswith("> <mark>one &lt;</mark>red<mark>&gt;</mark> cat instead of: a")
    first, second, third = images(html)
    assert first.size == (320, 240) and first.getpixel((9, 9))[0] > 200
    for image in (second, third):
        assert image.size == (80, 80) and image.getpixel((9, 9))[1] > 100
    assert not re.search(r'(?:src|href)="(?!data:)', html) and "http" not in html


def test_whatever_is_missing_of_a_pair_is_told(tmp_path: Path, root: Path, made: Path) -> None:
    nothing = paired("", "", negative=None, retold=None)
    _, negative, positive = columns(page(tmp_path, root, nothing, counterfactual_images=made))
    assert negative == "negative no image no edited caption"
    assert positive == "positive no image no paraphrase"
    gone = paired("gone.png", "../images/red.png")
    _, negative, positive = columns(page(tmp_path, root, gone, counterfactual_images=made))
    assert "missing: no file at &#39;gone.png&#39; a red <mark>dog" in negative
    assert "out_of_root" in positive
    _, negative, _ = columns(page(tmp_path, root, paired("red.png", "")))
    assert "the folder of &#39;red.png&#39; is unknown" in negative


def rows(html: str) -> list[list[str]]:
    """Cells of the tables' rows."""
    found = re.findall("<tr>(<td.*?)</tr>", html)
    return [re.findall(r">([^<]*)</td>", row) for row in found]


def test_synthetic_pairs_are_counted_over_all_views(tmp_path: Path, root: Path, made: Path) -> None:
    views = [
        *(paired("a", "b"), paired("a", ""), paired("", "b", negative=None)),
        *(paired("a", "", retold=None), paired("", "", negative=None, retold=None)),
    ]
    html = page(tmp_path, root, *views, counterfactual_images=made, count=0)
    assert rows(html)[-2:] == [["negative", "3", "3", "3"], ["positive", "3", "2", "2"]]


def test_phrases_are_counted_and_beside_their_caption(tmp_path: Path, root: Path) -> None:
    views = [phrased("A <red> cat near a dog.", "A <red> cat", "a dog"), phrased("a dog", "a dog")]
    html = page(tmp_path, root, *views)
    assert "phrases: A &lt;red&gt; cat | a dog" in html
    assert "2 texts have phrases: 1.50 per text, 2 distinct. Most frequent: a dog 2," in html


def test_texts_of_a_pair_name_their_image(tmp_path: Path, root: Path) -> None:
    texts = view("red.png", "blue.png", positives=("a cat", "a dog"), negatives=("a cow", "a pig"))
    html = page(tmp_path, root, replace(texts, kind="pair"))
    shown = [re.sub("</?mark>", "", column) for column in columns(html)]
    assert shown[-4:-2] == ["positive 1, image 1 a cat", "positive 2, image 2 a dog"]
    assert shown[-2].startswith("negative 1, image 1: some rule a cow")
