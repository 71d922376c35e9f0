"""Captioner behind an OpenAI-compatible endpoint that takes images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compo_pipeline.chat.answers import SEEDS, Answer, answer_key
from compo_pipeline.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.datasets.recaption.contract import Question
from compo_pipeline.datasets.recaption.settings import KEY, RecaptionSettings
from compo_pipeline.images.decoding import ImageError
from compo_pipeline.run import compute, seeding
from compo_pipeline.storage.stores import KeyValueStore

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 90  # of the JPEG files that are sent


class EndpointCaptioner:
    """Asks a model on a server that takes images."""

    name: ClassVar[str] = "endpoint"

    def __init__(self, settings: RecaptionSettings, own: EndpointSettings, state: Path) -> None:
        """A captioner that opens nothing yet.

        Args:
            settings: prompt, size of images, seed.
            own: of the endpoint.
            state: folder of stored answers.
        """
        self._settings, self._own = settings, own
        cache = state / "endpoint.sqlite"
        self._store = KeyValueStore(cache, Answer)
        key = f"{KEY}.endpoint"
        self._endpoint = Endpoint(own, key=key, seed=settings.seed, cache=cache)

    @property
    def model(self) -> str:
        """Name of the model on the server."""
        return self._own.model

    @property
    def prompt(self) -> str:
        """What the model is asked about each image."""
        return self._settings.prompt

    @property
    def place(self) -> str:
        """The server's host, and whether the images leave this machine."""
        most = self._own.max_requests
        limit = "" if most is None else f", at most {most:,} in this run"
        leave = "" if self._endpoint.is_local else ". The images leave this machine"
        return f"requests to {self._endpoint.host} (model {self.model}{limit}){leave}"

    def key(self, content: str) -> str:
        """Hash of the image, its size, and all of the request but the image's bytes."""
        size = {"image": content, "max_side": self._settings.max_side}
        return answer_key({**size, **self._body(content)})

    def _body(self, content: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
        """A request about an image, which further parts of the message show."""
        asked = {"type": "text", "text": self._settings.prompt}
        seed = seeding.digest(self._settings.seed, content) % SEEDS
        message = {"role": "user", "content": [*parts, asked]}
        return request_body(self._own, [message], seed)

    def stored(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers of those keys that have one."""
        return self._store.get(keys)

    def check(self) -> None:
        """Check that the server is there, and that it leads to no other host."""
        self._endpoint.check()

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """The answer to each question; images are made ready while others are under way.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        spare = compute.cores()
        yield from self._endpoint.each(self._ask_one, questions, spare=spare, checked=True)

    def _ask_one(self, ask: Ask, question: Question) -> Answer | NoAnswer:
        """Send an image with its prompt to the endpoint; no answer if the image cannot be read."""
        try:
            shown = data_uri(question.load())
        except (ImageError, OSError) as error:
            return NoAnswer(f"the image cannot be read any more: {error}", final=False)
        part = {"type": "image_url", "image_url": {"url": shown}}
        return ask(question.key, partial(self._body, question.content, part))


def data_uri(image: Image) -> str:
    """An image as the URI of a JPEG file without metadata."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
