"""Images to caption, and the work on them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
from PIL import Image
from spacy.language import Language

from compo_pipeline.data.quality.caption_language import Vocabulary
from compo_pipeline.data.quality.settings import IngestSettings
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.recaption.captioners import EndpointCaptioner
from compo_pipeline.generation.recaption.recaptioning import Captioned, Recaptioning, recaption
from compo_pipeline.generation.recaption.settings import RecaptionSettings


@pytest.fixture
def photos(tmp_path: Path) -> Callable[[int], dict[str, Captioned]]:
    """Makes small images, no two alike, below `photos`."""

    def make(count: int) -> dict[str, Captioned]:
        (tmp_path / "photos").mkdir(exist_ok=True)
        for number in range(count):
            image = Image.new("RGB", (48, 32), (number % 250, 7 * number % 250, 90))
            image.save(tmp_path / "photos" / f"{number}.png")
        return {f"{n}.png": Captioned(f"train-{n}", (f"old {n}",)) for n in range(count)}

    return make


def recaptioned(
    folder: Path,
    url: str,
    sources: dict[str, Captioned],
    nlp: Language | None = None,
    settings: RecaptionSettings | None = None,
    **endpoint: Any,
) -> Recaptioning:
    """Recaption images below a folder by a chat server."""
    given = settings or RecaptionSettings()
    own = EndpointSettings(**{"url": url, "model": "fake", "timeout": 60.0, **endpoint})
    captioner, words = EndpointCaptioner(given, own, folder / "state"), nlp or spacy.blank("en")
    return recaption(
        sources, folder / "photos", captioner, given, IngestSettings(), Vocabulary(words)
    )


@pytest.fixture
def run(
    chat: Any, tmp_path: Path, compo_en: Language, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Recaptioning]:
    """Recaptions images by the chat server, asked once; settings of the endpoint are keywords."""
    monkeypatch.setattr("compo_pipeline.generation.chat.endpoint.RETRIES", 0)

    def start(
        sources: dict[str, Captioned], settings: RecaptionSettings | None = None, **endpoint: Any
    ) -> Recaptioning:
        given = {"url": chat.url, **endpoint}
        return recaptioned(tmp_path, given.pop("url"), sources, compo_en, settings, **given)

    return start


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()
