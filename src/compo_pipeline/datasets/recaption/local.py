"""Captioner with a model of images and text in a local folder, loaded by transformers.

Placeholders of the image and the chat template come from the folder.

Shapes: B images of a batch, T tokens of the prompt, N new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compo_pipeline.chat.answers import Answer
from compo_pipeline.chat.endpoint import NoAnswer, dated
from compo_pipeline.chat.local import check_folder, is_cut, load
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.datasets.recaption.contract import Question
from compo_pipeline.datasets.recaption.settings import (
    KEY,
    LocalCaptionerSettings,
    RecaptionSettings,
)
from compo_pipeline.images.decoding import ImageError
from compo_pipeline.models.foreign import read_object
from compo_pipeline.storage.hashing import folder_hash, hash_of
from compo_pipeline.storage.stores import KeyValueStore

if TYPE_CHECKING:
    from PIL.Image import Image

MODEL = "a model of images and text"
_OWN_KEY = f"{KEY}.transformers"
# Model types by what they are asked: a chat, a beginning to continue, a task.
_CHAT, _CONTINUED, _TASK = ("llava", "qwen2_vl", "qwen2_5_vl"), ("blip",), ("florence2",)
TYPES = (*_CONTINUED, *_TASK, *_CHAT)
_TASK_TEXT = "<MORE_DETAILED_CAPTION>"


def check(folder: Path) -> str:
    """Type of the model in a folder; raises an error if the type is not supported.

    Raises:
        SettingsError: it holds none of the known types, or asks for code of its own.
    """
    check_folder(folder, _OWN_KEY, MODEL)
    kind = str(read_object(folder / "config.json").get("model_type"))
    if kind not in TYPES:
        raise SettingsError(
            f"{_OWN_KEY}.folder: expected a model of the type {', '.join(TYPES)}, got {kind!r} "
            f"(model_type in {folder / 'config.json'})"
        )
    return kind


class LocalCaptioner:
    """Captioner with a local transformers model in this process, with greedy decoding."""

    name: ClassVar[str] = "transformers"

    def __init__(
        self, settings: RecaptionSettings, own: LocalCaptionerSettings, state: Path
    ) -> None:
        """A captioner that loads nothing yet.

        Args:
            settings: prompt and size of images.
            own: of the model.
            state: folder of stored answers.

        Raises:
            SettingsError: the folder holds no such model.
        """
        self._settings, self._own = settings, own
        self._kind = check(Path(own.folder))
        self._store = KeyValueStore(state / "transformers.sqlite", Answer)

    @property
    def model(self) -> str:
        """Name of the model's folder."""
        return Path(self._own.folder).name

    @property
    def prompt(self) -> str:
        """Prompt that the model gets with each image; empty for a model without prompts."""
        if self._kind in _CHAT:
            return self._settings.prompt
        return self._own.text or (_TASK_TEXT if self._kind in _TASK else "")

    @property
    def place(self) -> str:
        """Text for the log with the model's type and folder."""
        return f"images by {self._kind} in {self._own.folder}"

    @cached_property
    def _model_hash(self) -> str:
        """Hash of the files in the model's folder."""
        return folder_hash(Path(self._own.folder))

    def key(self, content: str) -> str:
        """Key of an image's answer: hash of the image, model files, prompt and settings."""
        own = self._own
        asked = {"image": content, "max_side": self._settings.max_side, "prompt": self.prompt}
        asked |= {"model": self._model_hash, "max_tokens": own.max_tokens}
        return hash_of({**asked, "dtype": own.dtype})

    def stored(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Stored answers by key, for the given keys; keys without an answer are left out."""
        return self._store.get(keys)

    def check(self) -> None:
        """Load the model, so that errors are raised before the first image is captioned.

        Raises:
            SettingsError: it cannot be loaded; names the YAML key.
        """
        _ = self._loaded

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield the answer to each question, batch by batch; unload the model after the last."""
        size = self._own.batch_size
        try:
            for start in range(0, len(questions), size):
                yield from self._answer_batch(questions[start : start + size])
        finally:
            self.__dict__.pop("_loaded", None)

    def _answer_batch(self, questions: Sequence[Question]) -> Iterator[Answer | NoAnswer]:
        """Yield and store the answers to a batch; `NoAnswer` for unreadable images."""
        images: dict[str, Image] = {}
        problems: dict[str, str] = {}
        for question in questions:
            try:
                images[question.key] = question.load()
            except (ImageError, OSError) as error:
                problems[question.key] = f"the image cannot be read any more: {error}"
        try:
            answers = dict(zip(images, self._generate_answers(list(images.values())), strict=True))
        except ValueError as error:
            if len(questions) > 1:
                for question in questions:
                    yield from self._answer_batch([question])
                return
            answers, problems = {}, {questions[0].key: f"the model's processor: {error}"}
        self._store.put(answers, replace=False)
        for question in questions:
            if question.key in problems:
                yield NoAnswer(problems[question.key], final=False)
            else:
                yield answers[question.key]

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """The loaded model and its processor."""
        classes = "AutoModelForImageTextToText", "AutoProcessor"
        network, processor = load(self._own, _OWN_KEY, MODEL, *classes)
        if self._kind in _CHAT and processor.chat_template is None:
            raise SettingsError(
                f"{_OWN_KEY}.folder: '{self._own.folder}' has no chat template "
                "(chat_template.jinja), by which this model is asked; save it with its processor"
            )
        # Left padding: generation continues at the end of each row.
        processor.tokenizer.padding_side = "left"
        return network, processor

    def _generate_answers(self, images: list[Image]) -> list[Answer]:
        """Generate the answers to a batch of images."""
        import torch

        if not images:
            return []
        network, processor = self._loaded
        text = {"text": [self._input_text()] * len(images)} if self.prompt else {}
        rows = processor(images=images, return_tensors="pt", padding=True, **text)
        rows = rows.to(network.device, network.dtype)  # integers stay as they are
        with torch.inference_mode():
            written = network.generate(
                **rows,
                max_new_tokens=self._own.max_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
            )
        # Tokens before the first new one: the prompt, or what a decoder begins with.
        given = 1
        if self._kind not in _TASK and "input_ids" in rows:
            given = rows["input_ids"].shape[1] - (self._kind in _CONTINUED)
        return [self._decode_answer(row.tolist(), given) for row in written]

    def _input_text(self) -> str:
        """Input text of the model for an image: the prompt, in the chat template if it has one."""
        if self._kind not in _CHAT:
            return self.prompt
        asked = [{"type": "image"}, {"type": "text", "text": self.prompt}]
        _, processor = self._loaded
        return str(
            processor.apply_chat_template(
                [{"role": "user", "content": asked}], tokenize=False, add_generation_prompt=True
            )
        )

    def _decode_answer(self, tokens: list[int], given: int) -> Answer:
        """Decode an answer from output tokens, without the prompt's tokens (BLIP keeps them)."""
        network, processor = self._loaded
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
        full = len(new) == self._own.max_tokens
        cut = full and is_cut(free, len(free), ends)
        return dated(Answer(str(text).strip(), cut))
