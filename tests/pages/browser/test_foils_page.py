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
from compo_pipeline.core.records import Foil
from compo_pipeline.data.catalog import ReceivedJsonDataset
from compo_pipeline.generation.foils.review import draw, noise_by_kind, read
from compo_pipeline.pages.previews import REVIEW, review_page

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
    approved("foils_review", str(review_page(drawn, REPORT, tmp_path).files(REVIEW)[REVIEW]))


def test_verdicts_are_given_by_mouse_and_keyboard_and_saved(
    chromium: Callable[[Path], AbstractContextManager[Any]], drawn: list[Foil], tmp_path: Path
) -> None:
    page = tmp_path / "page" / REVIEW
    write_files(review_page(drawn, REPORT, tmp_path).files(REVIEW), page.parent)
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
