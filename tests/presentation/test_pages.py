"""Parts that the pages share: thumbnails, image cards, changed words, links."""

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.presentation.pages import (
    EditedText,
    ImageCard,
    changed_words,
    edited_text,
    image_card,
    links,
    minus,
    thumbnail,
)


@pytest.mark.parametrize(
    ("size", "small"), [((800, 400), (100, 50)), ((40, 400), (10, 100)), ((30, 20), (30, 20))]
)
def test_a_thumbnail(size: tuple[int, int], small: tuple[int, int]) -> None:
    source = Image.new("RGB", size, "red")
    uri, width, height = thumbnail(source, 100)
    head, data = uri.split(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == "data:image/jpeg;base64"
    assert (width, height) == image.size == small
    assert image.getpixel((0, 0))[0] > 240
    assert source.size == size


def test_an_image_card_has_the_image_or_its_problem(tmp_path: Path) -> None:
    Image.new("RGB", (640, 320), "red").save(tmp_path / "red.png")
    card = image_card(tmp_path, "red.png")
    assert (card.label, card.width, card.height, card.problem) == ("red.png", 320, 160, "")
    assert card.uri.startswith("data:image/jpeg;base64,")
    gone = image_card(tmp_path, "gone.png")
    assert gone == ImageCard("gone.png", problem="missing: no file at 'gone.png'")
    assert "out_of_root" in image_card(tmp_path, "../red.png").problem


@pytest.mark.parametrize(
    ("text", "others", "pieces"),
    [
        ("a blue cat", ["a red cat"], [("a ", False), ("blue", True), (" cat", False)]),
        ("A cat", ["a CAT"], [("A cat", False)]),
        ("don't go", ["do go"], [("don't", True), (" go", False)]),
        ("a b c", ["x y z", "a b d"], [("a b ", False), ("c", True)]),
        ("on the mat, a cat.", ["a cat."], [("on the mat,", True), (" a cat.", False)]),
        ("a cat", ["a red cat"], [("a cat", False)]),
        ("", ["a cat"], []),
    ],
)
def test_changed_words(text: str, others: list[str], pieces: list[tuple[str, bool]]) -> None:
    assert list(changed_words(text, others)) == pieces
    assert "".join(piece for piece, _ in changed_words(text, others)) == text


def test_an_edited_text_has_new_and_removed_pieces() -> None:
    found = edited_text("A blue cat sits.", "A red cat sits.")
    assert found.pieces == (("A ", False), ("blue", True), (" cat sits.", False))
    assert found.gone == ("red",)
    removed = edited_text("A cat sits.", "A red cat sits.")
    assert removed.pieces == (("A cat sits.", False),) and removed.gone == ("red",)
    assert edited_text("", "A cat.") == edited_text(None, "A cat.") == EditedText()


def test_links_are_relative_and_name_the_command_of_a_missing_page(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "there.html").touch()
    found = links(
        tmp_path / "b",
        {
            "There": (tmp_path / "a/there.html", "kedro run"),
            "Later": (tmp_path / "a/later.html", "kedro run --pipeline=later"),
        },
    )
    assert [(link.href, link.command) for link in found] == [
        ("../a/there.html", None),
        ("../a/later.html", "kedro run --pipeline=later"),
    ]


def test_minus_signs_of_numbers_alone() -> None:
    assert (
        minus("-3.0 [-4, +1] fine-tuned R-1")
        == "\N{MINUS SIGN}3.0 [\N{MINUS SIGN}4, +1] fine-tuned R-1"
    )
