"""A writer with a language model of its own: a folder as transformers writes it.

Shapes: B captions of a batch, T tokens of what is asked, N new ones, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors.asking import judged, seed_of
from compo_pipeline.counterfactuals.editors.cache import Answer, Cache, key_of
from compo_pipeline.counterfactuals.editors.checks import CheckSettings
from compo_pipeline.counterfactuals.editors.prompts import fingerprint, messages, plain
from compo_pipeline.storage import files_fingerprint

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TransformersSettings:
    """Which model, and how it is asked.

    Attributes:
        folder: config, weights (safetensors) and tokenizer of a causal language model.
        temperature: of sampling; 0 is greedy, and asks once.
        max_tokens: most tokens of an answer.
        attempts: times that a caption is asked for, with another seed each, until an answer passes
            the checks.
        batch_size: captions that are asked for together.
        device: as torch names it; null: a GPU where there is one.
        dtype: of the weights; `auto` is what the folder says.
        checks: what a text is held to.
    """

    folder: str
    temperature: float = 0.7
    max_tokens: int = 60
    attempts: int = 3
    batch_size: int = 16
    device: str | None = None
    dtype: str = "auto"
    checks: CheckSettings = field(default_factory=CheckSettings)

    def __post_init__(self) -> None:
        """Numbers that make sense."""
        if min(self.max_tokens, self.attempts, self.batch_size) < 1 or self.temperature < 0:
            raise ValueError(
                "expected max_tokens, attempts and batch_size of 1 at least and no negative "
                f"temperature, got {self.max_tokens}, {self.attempts}, {self.batch_size} and "
                f"{self.temperature}"
            )


class TransformersEditor:
    """Each answer is drawn with a seed of its own caption: batches of other captions leave it as it
    is, but for the last digits of the logits.
    """

    name: ClassVar[str] = "transformers"

    def __init__(self, settings: TransformersSettings, *, key: str, seed: int, cache: Path) -> None:
        self._settings, self._key, self._seed, self._cache = settings, key, seed, Cache(cache)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Of all that decides the texts, the model's files among it."""
        own = self._settings
        parameters = (own.temperature, own.max_tokens, own.attempts, own.dtype)
        return short_fingerprint(
            self.name, parameters, own.checks, self._seed, self._identity, fingerprint()
        )

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """Answers in the requests' order, batch by batch; the model is loaded when its cache does
        not know an answer, and let go with the last: a maker of images may need its room.

        Raises:
            SettingsError: transformers is not installed, or the folder holds no such model.
        """
        size = self._settings.batch_size
        try:
            for start in range(0, len(requests), size):
                yield from self._batch(requests[start : start + size])
        finally:
            self._cache.close()
            self.__dict__.pop("_model", None)

    def _batch(self, requests: Sequence[EditRequest]) -> list[EditedCaption | EditFailure]:
        """Ask for all, then again for those whose answer was refused."""
        settled: dict[int, EditedCaption | EditFailure] = {}
        open_ = list(range(len(requests)))
        for attempt in range(self._settings.attempts if self._settings.temperature else 1):
            answers = self._answers([requests[place] for place in open_], attempt)
            for place, answer in zip(open_, answers, strict=True):
                checks = self._settings.checks
                settled[place] = judged(requests[place], answer, attempt, checks)
            open_ = [place for place in open_ if isinstance(settled[place], EditFailure)]
            if not open_:
                break
        return [settled[place] for place in range(len(requests))]

    def _answers(self, requests: Sequence[EditRequest], attempt: int) -> list[Answer]:
        """Answers of one attempt, those that the cache does not know asked for together."""
        asked = {self._asked(request, attempt): request for request in requests}
        known = self._cache.get(asked)
        new = {key: request for key, request in asked.items() if key not in known}
        if new:
            seeds = [seed_of(self._seed, request, attempt) for request in new.values()]
            made = self._model.answers(list(new.values()), seeds)
            captions = {key: request.caption for key, request in new.items()}
            known |= self._cache.put(dict(zip(new, made, strict=True)), captions)
        return [known[self._asked(request, attempt)] for request in requests]

    def _asked(self, request: EditRequest, attempt: int) -> str:
        own = self._settings
        asked: Mapping[str, Any] = {
            "model": self._identity,
            "messages": messages(request.caption, request.role),
            "temperature": own.temperature,
            "max_tokens": own.max_tokens,
            "dtype": own.dtype,
            "seed": seed_of(self._seed, request, attempt),
        }
        return key_of(asked)

    @cached_property
    def _identity(self) -> str:
        """A hash of the model's files."""
        folder = Path(self._settings.folder)
        if not (folder / "config.json").is_file():
            raise SettingsError(
                f"{self._key}.folder: expected a folder with config.json, weights and tokenizer of "
                f"a causal language model, got {self._settings.folder!r}"
            )
        files = (path for path in sorted(folder.glob("*")) if path.is_file())
        return files_fingerprint(
            (path.name, path) for path in files if not path.name.startswith(".")
        )

    @cached_property
    def _model(self) -> _Model:
        return _Model(self._settings, self._key)


class _Model:
    """Model and tokenizer, loaded."""

    def __init__(self, settings: TransformersSettings, key: str) -> None:
        import torch

        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise SettingsError(
                f"{key}: a model of one's own needs transformers, which is not installed "
                "(pip install transformers)"
            ) from error
        self._settings = settings
        self._device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # transformers' annotations do not hold for what its Auto classes return.
        self._tokenizer: Any
        self._network: Any
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(settings.folder, local_files_only=True)
            self._network = AutoModelForCausalLM.from_pretrained(
                settings.folder, local_files_only=True, use_safetensors=True, dtype=settings.dtype
            )
            self._network = self._network.to(self._device).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise SettingsError(
                f"{key}.folder: cannot load a causal language model from {settings.folder!r} "
                f"({error})"
            ) from error
        # What is to be gone on with stands at the end of its row.
        self._tokenizer.padding_side = self._tokenizer.truncation_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def answers(self, requests: Sequence[EditRequest], seeds: Sequence[int]) -> list[Answer]:
        """One answer for each request, with its seed."""
        import torch
        from transformers import LogitsProcessorList

        rows = self._tokenizer(
            [self._text(request) for request in requests],
            return_tensors="pt",
            padding=True,
            add_special_tokens=self._tokenizer.chat_template is None,
        ).to(self._device)  # [B, T]
        draws = [_Draws(self._settings.temperature, seeds)] if self._settings.temperature else []
        with torch.inference_mode():
            written = self._network.generate(
                input_ids=rows["input_ids"],
                attention_mask=rows["attention_mask"],
                logits_processor=LogitsProcessorList(draws),
                max_new_tokens=self._settings.max_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        return [self._answer(row) for row in written[:, rows["input_ids"].shape[1] :]]

    def _text(self, request: EditRequest) -> str:
        chat = messages(request.caption, request.role)
        if self._tokenizer.chat_template is None:
            return plain(chat)
        return str(
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        )

    def _answer(self, row: torch.Tensor) -> Answer:
        """The text of new tokens [N]. A model without a chat template goes on with further captions
        of its own: its answer is the first line.
        """
        ends = self._network.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        full = len(row) == self._settings.max_tokens and ends.isdisjoint(row.tolist())
        text = str(self._tokenizer.decode(row, skip_special_tokens=True))
        if self._tokenizer.chat_template is None:
            first, *more = text.lstrip().split("\n", 1)
            return Answer(first, full and not more)
        return Answer(text, full)


class _Draws:
    """Sampling as a maximum: Gumbel noise on logits over temperature, from a seed for each row.

    The largest of noisy logits is a draw of their softmax; so greedy search samples, and no row's
    draws depend on another row.
    """

    def __init__(self, temperature: float, seeds: Sequence[int]) -> None:
        import torch

        self._temperature = temperature
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Noisy scores [B, V] in float32; tokens so far are [B, T]."""
        import torch

        uniform = torch.stack(
            [torch.rand(scores.shape[1], generator=one) for one in self._generators]
        )
        noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
        return scores.float() / self._temperature + noise.to(scores.device)
