"""Captioners: a model behind an OpenAI-compatible endpoint, or in a local folder.

Each answer is stored as it comes, under a key that covers the image's bytes, the prompt, the model,
and all settings that change an answer.

Shapes: B images of a batch, T tokens of the prompt, N new ones.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import files_hash, files_in, hash_of
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.tables import grouped
from compo_pipeline.data.images import decoding
from compo_pipeline.generation.chat.answers import SEEDS, Answer, dated
from compo_pipeline.generation.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.recaption.settings import (
    KEY,
    LocalCaptionerSettings,
    RecaptionSettings,
)
from compo_pipeline.models import foreign

if TYPE_CHECKING:
    from PIL.Image import Image

MODEL = "a model of images and text"
NO_SAMPLING = dict.fromkeys(("temperature", "top_p", "top_k"))  # what a folder may configure
_LOCAL_KEY = f"{KEY}.transformers"
_QUALITY = 90  # of the JPEG files that are sent
# Model types by what they are asked: a chat, a beginning to continue, a task.
_CHAT, _CONTINUED, _TASK = ("llava", "qwen2_vl", "qwen2_5_vl"), ("blip",), ("florence2",)
TYPES = (*_CONTINUED, *_TASK, *_CHAT)
_TASK_TEXT = "<MORE_DETAILED_CAPTION>"


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
        self._endpoint = Endpoint(own, key=key, cache=cache)
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


def check(folder: Path) -> str:
    """Type of the model in a folder.

    Raises an error if the type is not supported.

    Raises:
        SettingsError: it holds none of the known types, or asks for code of its own.
    """
    key, config = f"{_LOCAL_KEY}.folder", folder / "config.json"
    if not config.is_file():
        raise SettingsError(
            f"{key}: expected a folder with config.json, weights and processor of {MODEL}, got "
            f"'{folder}'"
        )
    foreign.refuse_code(folder, key)
    kind = str(foreign.read_object(config).get("model_type"))
    if kind not in TYPES:
        raise SettingsError(
            f"{key}: expected a model of the type {', '.join(TYPES)}, got {kind!r} "
            f"(model_type in {config})"
        )
    return kind


def load_generator(
    folder: Path, key: str, dtype: str = "auto", *, chat: bool = True
) -> tuple[Any, Any, set[str]]:
    """What `foreign.load_transformers` gives of a model of images and text, ready to generate.

    Raises:
        SettingsError: it holds no such model, or the chat template that `chat` asks for is missing.
    """
    network, processor, missing = foreign.load_transformers(
        folder, key, MODEL, "AutoModelForImageTextToText", dtype
    )
    if chat and processor.chat_template is None:
        raise SettingsError(
            f"{key}: '{folder}' has no chat template (chat_template.jinja), by which this model is "
            "asked; save it with its processor"
        )
    # Generation continues at the end of each row.
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return network, processor, missing


def chat_text(processor: Any, prompt: str) -> str:
    """Input text of a chat model that is shown an image with a prompt."""
    asked = [{"type": "image"}, {"type": "text", "text": prompt}]
    turns = [{"role": "user", "content": asked}]
    return str(processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


class LocalCaptioner:
    """Captioner with a local transformers model in this process, with greedy decoding.

    Placeholders of the image and the chat template come from the folder. The model is loaded for
    the first answer that is not stored, and let go with the last.

    Args:
        settings: prompt and size of images.
        own: settings of the model.
        state: folder of stored answers.

    Raises:
        SettingsError: the folder holds no such model.
    """

    name: ClassVar[str] = "transformers"

    def __init__(
        self, settings: RecaptionSettings, own: LocalCaptionerSettings, state: Path
    ) -> None:
        self._settings, self._own = settings, own
        folder = Path(own.folder)
        self._kind, self.model, self._files = (
            check(folder),
            folder.name,
            files_hash(files_in(folder)),
        )
        self.answers = KeyValueStore(state / "transformers.sqlite", Answer)

    @property
    def prompt(self) -> str:
        """Prompt that the model gets with each image, empty for a model without prompts."""
        if self._kind in _CHAT:
            return self._settings.prompt
        return self._own.text or (_TASK_TEXT if self._kind in _TASK else "")

    @property
    def place(self) -> str:
        """Text for the log with the model's type and folder."""
        return f"images by {self._kind} in {self._own.folder}"

    def key(self, content: str) -> str:
        """Key of an image's answer: hash of the image, model files, prompt and settings."""
        own = self._own
        asked = {"image": content, "max_side": self._settings.max_side, "prompt": self.prompt}
        asked |= {"model": self._files, "max_tokens": own.max_tokens}
        return hash_of({**asked, "dtype": own.dtype})

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield the answer to each question, batch by batch.

        Raises:
            SettingsError: the model cannot be loaded; names the YAML key.
        """
        loaded = self._load()
        for some in grouped(questions, self._own.batch_size):
            yield from self._answer_batch(*loaded, some)

    def _load(self) -> tuple[Any, Any]:
        """The model, on a GPU where there is one, and its processor."""
        import torch

        key, folder = f"{_LOCAL_KEY}.folder", Path(self._own.folder)
        chat = self._kind in _CHAT
        network, processor, _ = load_generator(folder, key, self._own.dtype, chat=chat)
        return network.to("cuda" if torch.cuda.is_available() else "cpu"), processor

    def _answer_batch(
        self, network: Any, processor: Any, questions: Sequence[Question]
    ) -> Iterator[Answer | NoAnswer]:
        """Yield and store the answers to a batch, or `NoAnswer` for unreadable images."""
        found: dict[str, Answer | NoAnswer] = {}
        readable: dict[str, Image] = {}
        for question in questions:
            try:
                readable[question.key] = question.image()
            except NoAnswer as error:
                found[question.key] = error
        try:
            answers = self._generate_answers(network, processor, list(readable.values()))
        except ValueError as error:
            if len(questions) > 1:
                for question in questions:
                    yield from self._answer_batch(network, processor, [question])
            else:
                yield NoAnswer(f"the model's processor: {error}")
            return
        new = dict(zip(readable, answers, strict=True))
        self.answers.put(new, replace=False)
        found |= new
        yield from (found[question.key] for question in questions)

    def _generate_answers(self, network: Any, processor: Any, images: list[Image]) -> list[Answer]:
        """Generate the answers to a batch of images."""
        import torch

        if not images:
            return []
        text = {"text": [self._input_text(processor)] * len(images)} if self.prompt else {}
        rows = processor(images=images, return_tensors="pt", padding=True, **text)
        rows = rows.to(network.device, network.dtype)  # integers stay as they are
        # Tokens before the first new one: the prompt, or what a decoder begins with.
        given = 1
        if self._kind not in _TASK and "input_ids" in rows:
            given = rows["input_ids"].shape[1] - (self._kind in _CONTINUED)
        most, greedy = self._own.max_tokens, {"do_sample": False, "num_beams": 1, **NO_SAMPLING}
        with torch.inference_mode():
            written = network.generate(**rows, max_new_tokens=most, **greedy)
        # [B, T + N], or [B, 1 + N]
        return [self._decode_answer(network, processor, row, given) for row in written.tolist()]

    def _input_text(self, processor: Any) -> str:
        """Input text of the model for an image: the prompt, in the chat template if it has one."""
        return chat_text(processor, self.prompt) if self._kind in _CHAT else self.prompt

    def _decode_answer(self, network: Any, processor: Any, tokens: list[int], given: int) -> Answer:
        """Decode an answer from output tokens, without the prompt's tokens (BLIP keeps them)."""
        new = tokens[given:]
        text = processor.tokenizer.decode(
            tokens if self._kind in _CONTINUED else new, skip_special_tokens=True
        )
        configured = network.generation_config
        ends = configured.eos_token_id
        if self._kind in _CONTINUED:
            ends = network.config.text_config.sep_token_id
        # An end that is forced upon the last token says nothing.
        free = new[:-1] if configured.forced_eos_token_id is not None else new
        ended = {ends} if isinstance(ends, int) else set(ends or ())
        cut = len(new) == self._own.max_tokens and ended.isdisjoint(free)
        return dated(Answer(str(text).strip(), cut))


Captioner: TypeAlias = EndpointCaptioner | LocalCaptioner
