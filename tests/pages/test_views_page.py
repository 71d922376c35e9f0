"""The page of random views: complete, and never stopped by an image."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.records import View
from compo_pipeline.pages.pages import Cards, ImageCard, Page, Side, Table
from compo_pipeline.pages.previews import views_page

ORIGIN = {"generator": "some_rule", "category": "noun_phrase", "words": ["cat", "<dog>"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image.new("RGB", (800, 600), "red").save(tmp_path / "red.png")
    Image.new("RGB", (800, 600), "blue").save(tmp_path / "blue.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    return tmp_path


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
    kind: str | None = None,
    made: tuple[str, ...] = (),
    phrases: tuple[str, ...] = (),
) -> View:
    origins = [text and ORIGIN for text in negatives]
    told = json.dumps({"language": "words==1.0", "negatives": origins})
    kind = kind or ("composite" if axis else "single")
    ids = (sample_id,)
    return View(sample_id, kind, ids, images, axis, positives, negatives, phrases, (), made, told)


def page(
    root: Path, *views: View, made: Path = Path("none"), seed: int = 7, count: int = 50
) -> Page:
    return views_page(views, root, made, "a method", "a dataset", 3, seed, count)


def sides(given: Page) -> list[Side]:
    (cards,) = (section for section in given.sections if isinstance(section, Cards))
    return [side for card in cards.cards for side in card.sides]


def table(given: Page, first: str) -> list[list[Any]]:
    found = (one for one in given.sections if isinstance(one, Table) and one.columns[0] == first)
    return [[cell.text for cell in line] for line in next(found).lines]


def image(card: ImageCard | None) -> Image.Image:
    assert card is not None
    return Image.open(io.BytesIO(base64.b64decode(card.uri.partition(",")[2])))


def test_the_page(approved: Callable[[str, str], None], root: Path, made: Path) -> None:
    views = [
        view("red.png"),
        view("red.png", "blue.png", axis="vertical", negatives=(None, "a red cow")),
        view("gone.png", "red.png", axis="vertical"),
        view("broken.png", phrases=("a red cat",)),
        view("../red.png"),
        view("red.png", "blue.png", kind="pair", positives=("a cat", "a dog")),
        view("red.png", positives=("a red cat", "one cat"), made=("red.png", "gone.png")),
        view("red.png", negatives=(None,), kind="long"),
    ]
    approved("views", str(page(root, *views, made=made).files("index.html")["index.html"]))
    approved("no_views", str(page(root).files("index.html")["index.html"]))


@pytest.mark.parametrize(("axis", "second"), [("vertical", (160, 240)), ("horizontal", (240, 160))])
def test_composites_are_joined_as_training_shows_them(
    root: Path, axis: str, second: tuple[int, int]
) -> None:
    joined = image(sides(page(root, view("red.png", "blue.png", axis=axis)))[0].image)
    assert joined.size == (320, 320)
    red, _, blue = joined.getpixel((80, 80))
    assert red > 200 > 50 > blue
    red, _, blue = joined.getpixel(second)
    assert blue > 200 > 50 > red


def test_negatives_are_counted_and_absent_ones_told(root: Path) -> None:
    negatives = ((None, "a red dog"), ("a red cow", None), (None, "a red pig"))
    given = page(root, *(view("red.png", negatives=each) for each in negatives))
    assert [side.problem for side in sides(given)].count("absent: no negative was found") == 3
    assert table(given, "negative") == [
        ["2", "some rule", "noun phrase", "2"],
        ["1", "some rule", "noun phrase", "1"],
    ]


def test_a_random_draw_that_the_seed_decides(root: Path) -> None:
    views = [view(sample_id=f"id{n:03d}") for n in range(60)]

    def shown(seed: int, count: int) -> list[str]:
        (cards,) = page(root, *views, seed=seed, count=count).sections[1:]
        return [card.head[0] for card in cards.cards]  # type: ignore[attr-defined]

    assert len(shown(0, 20)) == 20
    assert shown(0, 20) == shown(0, 20) != shown(1, 20)
    assert shown(0, 20) != [f"id{n:03d}" for n in range(20)]
    assert shown(0, 100) == [f"id{n:03d}" for n in range(60)]
