"""The review page of foils in a browser: verdicts by mouse and keyboard, and the saved file."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compo_pipeline.core.files import write_files
from compo_pipeline.core.records import Foil, Score
from compo_pipeline.data.catalog import ReceivedJsonDataset
from compo_pipeline.evaluation.comparison import compare, run_pairs
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.generation.foils.review import draw, noise_by_kind, read
from compo_pipeline.pages.foils_page import PAGE, review_page, sections
from compo_pipeline.pages.pages import Page

REPORT = {"builder": 1, "fingerprint": "f00d", "language": "compo_en 1.0"}
HOSTILE = "</script><script>document.title='taken'</script>"


@pytest.fixture
def drawn(tmp_path: Path) -> list[Foil]:
    """Five items; the texts and the name of one would be markup."""
    items = []
    for number in range(5):
        Image.new("RGB", (40, 30), (50 * number, 90, 90)).save(tmp_path / f"{number}.png")
        name = f"half_truth-{number}" + HOSTILE * (number == 3)
        texts = (f"a red cup {HOSTILE}", "a blue cup", "a red cup", ("red", "blue"))
        image = f"{number}.png" if number else "gone.png"
        items.append(
            Foil(name, "half_truth", "test", "used", name, name, image, name, *texts, 0.0, name)
        )
    return draw(items, "test", "f00d")


def test_the_page(approved: Callable[[str, str], None], drawn: list[Foil], tmp_path: Path) -> None:
    approved("foils_review", str(review_page(drawn, REPORT, tmp_path).files(PAGE)[PAGE]))


def test_the_part_of_the_report(drawn: list[Foil]) -> None:
    """Scored kinds with what texts alone tell and a person said; the others with their reason."""
    models = {"base": "base", "fine_tuned": "clic"}
    place = "foils", "half_truth", "accuracy"
    scores = [
        Score(model, *place, f"{k}", f"{k}.png", (0.2, 0.1), k < right, None)
        for model, right in (("base", 2), ("clic", 4))
        for k in range(5)
    ]
    rows = compare([scores], models, run_pairs(models), {})
    named = {role: ComparedModel(name, name) for role, name in models.items()}
    limits = {"text_accuracy": 0.57, "text_accuracy_limit": 0.6}
    kinds = {
        "half_truth": {"state": "used", "items": 5, **limits},
        "swapped_objects": {"state": "guessable", "items": 200, **limits},
        "replaced_object": {"state": "few", "items": 12, **dict.fromkeys(limits)},
    }
    verdicts = {one.item: "accept" if k else "reject" for k, one in enumerate(drawn)}
    review = {"builder": 1, "fingerprint": "f00d", "split": "test", "verdicts": verdicts}
    noise = noise_by_kind(drawn, read(review, REPORT, drawn))
    report = {"splits": {"test": {"kinds": kinds}}}
    page = Page("", "", sections(Comparison(named, tuple(rows)), report, "test", noise))
    shown = str(page.files("a.md")["a.md"])
    (row,) = [line for line in shown.splitlines() if line.startswith("| ") and "half" in line]
    assert [float(cell.split()[0]) for cell in row.split("|")[2:5]] == [5, 40, 80]
    assert "57.0" in row and "at most 60.0" in row and "20.0" in row and "of 5" in row
    assert "swapped objects: 200 items" in shown and "57%, at most 60%" in shown
    assert "replaced object: 12 items" in shown and "1 are false" in shown


def test_verdicts_are_given_by_mouse_and_keyboard_and_saved(
    chromium: Callable[[Path], AbstractContextManager[Any]], drawn: list[Foil], tmp_path: Path
) -> None:
    page = tmp_path / "page" / PAGE
    write_files(review_page(drawn, REPORT, tmp_path).files(PAGE), page.parent)
    saved = tmp_path / "saved"
    saved.mkdir()
    with chromium(tmp_path / "chromium") as person:
        person.command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(saved))
        person.go(page.as_uri())
        person.wait("(document.querySelector('[role=status]') || {}).textContent")
        assert person.read("document.title") == "Review of the foils of 'test'"
        assert person.read("document.querySelectorAll('img').length") == 4
        person.click(".card:nth-of-type(1) [data-verdict=accept]")
        person.click(".card:nth-of-type(1) [data-verdict=reject]")  # thought better of it
        for key in ("j", "a", "u", "r", "k", "k", "a"):
            person.command("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        pressed = (
            "[...document.querySelectorAll('[aria-pressed=true]')].map(b => b.dataset.verdict)"
        )
        expected = ["reject", "accept", "accept", "reject"]
        assert person.read(pressed) == expected
        assert "4 of 5 judged: 2 accepted, 2 rejected" in person.read("document.body.innerText")
        # A reload keeps them.
        person.command("Page.reload")
        person.wait(f"({pressed}).length === 4")
        person.click("#save")
        file = saved / "foils_review.json"
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.1)
        asked = [url for url in person.requests if not url.startswith(("data:", "blob:"))]
        assert set(asked) == {page.as_uri()}
    verdicts = dict(zip((one.item for one in drawn), expected, strict=False))
    assert json.loads(file.read_text()) == {
        "builder": 1,
        "fingerprint": "f00d",
        "split": "test",
        "verdicts": verdicts,
    }
    content = ReceivedJsonDataset(filepath=str(file)).load()
    found = noise_by_kind(drawn, read(content, REPORT, drawn))
    assert found["half_truth"][:4] == (4, 2, 0, 0.5)
