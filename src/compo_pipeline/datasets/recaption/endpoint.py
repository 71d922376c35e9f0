"""Captioner behind an OpenAI-compatible endpoint that takes images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compo_pipeline.chat.answers import SEEDS, Answer
from compo_pipeline.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.datasets.recaption.contract import Question
from compo_pipeline.datasets.recaption.settings import KEY, RecaptionSettings
from compo_pipeline.images.decoding import ImageError
from compo_pipeline.run import compute, seeding
from compo_pipeline.storage.hashing import hash_of
from compo_pipeline.storage.stores import KeyValueStore

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 90  # of the JPEG files that are sent


class EndpointCaptioner:
    """Captioner that sends images to a model on an OpenAI-compatible server."""

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
        """Prompt that the model gets with each image."""
        return self._settings.prompt

    @property
    def place(self) -> str:
        """Text for the log with the server's host, and whether images leave this machine."""
        most = self._own.max_requests
        limit = "" if most is None else f", at most {most:,} in this run"
        leave = "" if self._endpoint.is_local else ". The images leave this machine"
        return f"requests to {self._endpoint.host} (model {self.model}{limit}){leave}"

    def key(self, content: str) -> str:
        """Key of an image's answer: hash of the image, its maximal size and the request."""
        size = {"image": content, "max_side": self._settings.max_side}
        return hash_of({**size, **self._request_body(content)})

    def _request_body(self, content: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
        """JSON body of the request for an image; `parts` are the message's parts with the image."""
        asked = {"type": "text", "text": self._settings.prompt}
        seed = seeding.digest(self._settings.seed, content) % SEEDS
        message = {"role": "user", "content": [*parts, asked]}
        return request_body(self._own, [message], seed)

    def stored(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Stored answers by key, for the given keys; keys without an answer are left out."""
        return self._store.get(keys)

    def check(self) -> None:
        """Check that the server answers, and redirects to no other host."""
        self._endpoint.check()

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield the answer to each question, in order; encodes images while it waits for answers.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        spare = compute.cores()
        yield from self._endpoint.each(self._ask_one, questions, spare=spare, checked=True)

    def _ask_one(self, ask: Ask, question: Question) -> Answer | NoAnswer:
        """Send an image with its prompt to the server; no answer if the image cannot be read."""
        try:
            shown = data_uri(question.load())
        except (ImageError, OSError) as error:
            return NoAnswer(f"the image cannot be read any more: {error}", final=False)
        part = {"type": "image_url", "image_url": {"url": shown}}
        return ask(question.key, partial(self._request_body, question.content, part))


def data_uri(image: Image) -> str:
    """Data URI of an image as a JPEG file without metadata."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
