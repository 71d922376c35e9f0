"""The captioner: a model of images and text behind an OpenAI-compatible endpoint.

Each answer is stored as it comes, under a key that covers the image's bytes, the prompt, the model,
and all settings that change an answer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.data.images import decoding
from compo_pipeline.generation.chat.answers import SEEDS, Answer
from compo_pipeline.generation.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.recaption.settings import KEY, RecaptionSettings

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 90  # of the JPEG files that are sent


class Question(NamedTuple):
    """An image for which a captioner is asked, with the key under which its answer is stored.

    `content` is the hash of its bytes, and what else determines its pixels.
    """

    key: str
    content: str
    load: Callable[[], Image]

    def image(self) -> Image:
        """Load the image to caption.

        Raises:
            NoAnswer: it can no longer be read.
        """
        try:
            return self.load()
        except (decoding.ImageError, OSError) as error:
            raise NoAnswer(f"the image cannot be read any more: {error}") from error


def shown_image(root: Path, path: str, limits: decoding.Limits, side: int) -> Image:
    """Load an image in RGB, upright, without metadata, resized to at most `side` pixels.

    Raises:
        ImageError: it can no longer be read.
    """
    from PIL import Image

    image = decoding.load(root, path, limits)
    # Bicubic takes 1.6 to 1.8 times as long, for images that the model makes smaller still.
    image.thumbnail((side, side), Image.Resampling.BILINEAR, reducing_gap=1.5)
    # Pillow would write a comment of the original into a copy's file.
    image.info.clear()
    return image


class EndpointCaptioner:
    """Captioner that sends images to a model on an OpenAI-compatible server.

    Args:
        settings: prompt and size of images.
        own: settings of the endpoint.
        state: folder of stored answers.
    """

    name: ClassVar[str] = "endpoint"

    def __init__(self, settings: RecaptionSettings, own: EndpointSettings, state: Path) -> None:
        self._settings, self._own = settings, own
        self.model, self.prompt = own.model, settings.prompt
        cache, key = state / "endpoint.sqlite", f"{KEY}.endpoint"
        self._endpoint = Endpoint(own, key=key, seed=0, cache=cache)
        self.answers = self._endpoint.answers

    @property
    def place(self) -> str:
        """Text for the log with the server's host, which gets the images."""
        most = self._own.max_requests
        limit = "" if most is None else f", at most {most:,} in this run"
        host = urlsplit(self._own.url).netloc.rpartition("@")[2]
        return f"requests to {host}, with the images (model {self.model}{limit})"

    def key(self, content: str) -> str:
        """Key of an image's answer: hash of the image, its maximal size and the request."""
        size = {"image": content, "max_side": self._settings.max_side}
        return hash_of({**size, **self._request_body(content)})

    def _request_body(self, content: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
        """JSON body of the request for an image.

        `parts` are the message's parts with the image.
        """
        asked = {"type": "text", "text": self._settings.prompt}
        seed = seeding.digest(0, content) % SEEDS
        message = {"role": "user", "content": [*parts, asked]}
        return request_body(self._own, [message], seed)

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield the answer to each question, in order.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        yield from self._endpoint.each(self._ask_one, questions)

    def _ask_one(self, ask: Ask, question: Question) -> Answer:
        """Send an image with its prompt to the server."""
        part = {"type": "image_url", "image_url": {"url": data_uri(question.image())}}
        return ask(question.key, self._request_body(question.content, part))


def data_uri(image: Image) -> str:
    """Data URI of an image as a JPEG file without metadata."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
