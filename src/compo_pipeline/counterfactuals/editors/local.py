"""Caption editor with a language model in a local folder, loaded by transformers.

Shapes: B captions of a batch, T tokens of the prompt, N new ones, V size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from compo_pipeline.chat.answers import Answer
from compo_pipeline.chat.local import check_folder, is_cut, load
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    Opening,
)
from compo_pipeline.counterfactuals.editors.llm import (
    PROMPTS,
    as_plain_text,
    attempt_seed,
    check_answer,
    edit_messages,
)
from compo_pipeline.counterfactuals.settings import EditorLocalSettings
from compo_pipeline.storage.hashing import folder_hash, hash_of
from compo_pipeline.storage.stores import KeyValueStore

if TYPE_CHECKING:
    import torch

MODEL = "a causal language model"
"""What the folder must hold, for errors."""


class TransformersEditor:
    """Caption editor that runs a language model in this process, and stores its answers.

    An answer is stored before it is checked.

    Each caption samples by a seed of its own: other captions of its batch change no more than the
    last digits of the logits.
    """

    name: ClassVar[str] = "transformers"
    concurrent: ClassVar[bool] = False

    def __init__(self, settings: EditorLocalSettings, *, key: str, seed: int, cache: Path) -> None:
        self._settings, self._key, self._seed = settings, key, seed
        self._store = KeyValueStore(cache, Answer)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Hash of all settings that change the texts, and of the model's files."""
        own = self._settings
        parameters = (own.temperature, own.max_tokens, own.attempts, own.dtype)
        return hash_of(self.name, parameters, self._seed, self._model_hash, PROMPTS)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """Yield an edited caption or a failure for each request, in order, batch by batch.

        The model is loaded for the first answer that is not stored, and unloaded after the last:
        an image generator may need the memory.

        Raises:
            SettingsError: transformers is not installed, or the folder holds no such model.
        """
        size = self._settings.batch_size
        try:
            for start in range(0, len(requests), size):
                yield from self._edit_batch(requests[start : start + size])
        finally:
            self.__dict__.pop("_model", None)

    def _edit_batch(self, requests: Sequence[EditRequest]) -> list[EditedCaption | EditFailure]:
        """Edit a batch of captions; the model is asked again where an answer is rejected."""
        results: dict[int, EditedCaption | EditFailure] = {}
        open_ = list(range(len(requests)))
        for attempt in range(self._settings.attempts if self._settings.temperature else 1):
            answers = self._answers_of_attempt([requests[place] for place in open_], attempt)
            for place, answer in zip(open_, answers, strict=True):
                results[place] = check_answer(requests[place], answer, attempt)
            open_ = [place for place in open_ if isinstance(results[place], EditFailure)]
            if not open_:
                break
        return [results[place] for place in range(len(requests))]

    def _answers_of_attempt(self, requests: Sequence[EditRequest], attempt: int) -> list[Answer]:
        """Answers of one attempt for a batch: stored ones, and newly generated ones."""
        keys = [self._answer_key(request, attempt) for request in requests]
        stored = self._store.get(keys)
        new = {key: one for key, one in zip(keys, requests, strict=True) if key not in stored}
        if new:
            seeds = [attempt_seed(self._seed, request, attempt) for request in new.values()]
            answers = self._model.answers(list(new.values()), seeds)
            # The first answer to a request counts, whichever process got it.
            self._store.put(dict(zip(new, answers, strict=True)), replace=False)
            stored |= self._store.get(new)
        return [stored[key] for key in keys]

    def _answer_key(self, request: EditRequest, attempt: int) -> str:
        """Key under which the model's answer of an attempt is stored."""
        own = self._settings
        asked = {
            "model": self._model_hash,
            "messages": edit_messages(request.caption, request.role),
            "temperature": own.temperature,
            "max_tokens": own.max_tokens,
            "dtype": own.dtype,
            "seed": attempt_seed(self._seed, request, attempt),
        }
        return hash_of(asked)

    @cached_property
    def _model_hash(self) -> str:
        """Hash of the language model's files."""
        folder = Path(self._settings.folder)
        check_folder(folder, self._key, MODEL)
        return folder_hash(folder)

    @cached_property
    def _model(self) -> _LoadedModel:
        """Language model and tokenizer, loaded at first use."""
        return _LoadedModel(self._settings, self._key)


class _LoadedModel:
    """A causal language model with its tokenizer, loaded into memory."""

    def __init__(self, settings: EditorLocalSettings, key: str) -> None:
        self._settings = settings
        classes = "AutoModelForCausalLM", "AutoTokenizer"
        self._network, self._tokenizer = load(settings, key, MODEL, *classes)
        # Left padding: generation continues at the end of each row.
        self._tokenizer.padding_side = self._tokenizer.truncation_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def answers(self, requests: Sequence[EditRequest], seeds: Sequence[int]) -> list[Answer]:
        """Generate the answers for a batch of requests, each sampled with its own seed."""
        import torch
        from transformers import LogitsProcessorList

        rows = self._tokenizer(
            [self._prompt(request) for request in requests],
            return_tensors="pt",
            padding=True,
            add_special_tokens=self._tokenizer.chat_template is None,
        ).to(self._network.device)  # [B, T]
        draws = (
            [_GumbelSampling(self._settings.temperature, seeds)]
            if self._settings.temperature
            else []
        )
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
        return [self._decode(row) for row in written[:, rows["input_ids"].shape[1] :]]

    def _prompt(self, request: EditRequest) -> str:
        """Prompt of a request as text, in the model's chat template if it has one."""
        chat = edit_messages(request.caption, request.role)
        if self._tokenizer.chat_template is None:
            return as_plain_text(chat)
        return str(
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        )

    def _decode(self, row: torch.Tensor) -> Answer:
        """Answer decoded from generated token ids [N].

        A model without a chat template continues with further captions: its answer is the first
        line.
        """
        ends = self._network.generation_config.eos_token_id
        full = is_cut(row.tolist(), self._settings.max_tokens, ends)
        text = str(self._tokenizer.decode(row, skip_special_tokens=True))
        if self._tokenizer.chat_template is None:
            first, *more = text.lstrip().split("\n", 1)
            return Answer(first, full and not more)
        return Answer(text, full)


class _GumbelSampling:
    """Logits processor that lets greedy search sample: Gumbel noise with a seed per row.

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


def open_editor(settings: EditorLocalSettings, key: str, opening: Opening) -> TransformersEditor:
    """Create the caption editor `transformers` from its settings."""
    cache = opening.state / "transformers.sqlite"
    return TransformersEditor(settings, key=key, seed=opening.seed, cache=cache)
