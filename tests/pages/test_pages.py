"""Parts that the pages share: thumbnails, image cards, changed words, links."""

from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.provenance import Site
from compo_pipeline.pages.pages import (
    Card,
    Cards,
    Cell,
    ImageCard,
    Link,
    List,
    Page,
    Plot,
    Side,
    Table,
    Text,
    changed_words,
    image_card,
    links,
    marked,
)


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
        ("don't go", ["do go"], [("don't", True), (" go", False)]),
        ("a b c", ["x y z", "a b d"], [("a b ", False), ("c", True)]),
    ],
)
def test_changed_words(text: str, others: list[str], pieces: list[tuple[str, bool]]) -> None:
    assert list(changed_words(text, others)) == pieces
    assert "".join(piece for piece, _ in changed_words(text, others)) == text


def test_new_words_are_marked() -> None:
    assert marked("A blue <b>.", ["A red <b>."]) == "A <mark>blue</mark> &lt;b&gt;."
    assert marked("", ["A cat."]) == ""


def test_links_are_relative_and_name_the_pipeline_of_a_missing_page(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "there.html").touch()
    site = Site(pages={name: str(tmp_path / f"a/{name}.html") for name in ("there", "later")})
    found = links(tmp_path / "b", site, {"There": ("there", "x"), "Later": ("later", "y")})
    assert found == [Link("There", "../a/there.html"), Link("Later", "../a/later.html", "y")]


def test_texts_are_texts_in_every_kind_of_section() -> None:
    bad = "<b>&</b>"
    table = Table(["name", bad], [[bad, 1234], [Cell(bad, "bad", bad), 0.26]], [bad], note=bad)
    card = Card([bad], [Side(bad, ImageCard(bad, problem=bad), bad, [bad], bad)], table)
    edited = Card([bad], [Side(text=marked(bad, [""]))])
    sections = [table, Cards([card, edited]), Text(bad, bad), List([bad]), Plot(bad, html="<svg/>")]
    page = Page(
        bad, bad, sections, [bad], {bad: bad}, [Link(bad, "a.html", bad)], bad, script="1<2"
    )
    files = page.files("page.html", "page.md")
    html, markdown = str(files["page.html"]), str(files["page.md"])
    assert "<b>" not in html and html.count("&lt;b&gt;&amp;&lt;/b&gt;") > 20
    assert "<svg/>" in html and "1<2" in html and "1,234" in html
    assert f"| {bad} | 1,234 |\n| {bad} {bad} | 0.3 |" in markdown
