"""Caption editors that ask a language model, behind an endpoint or in a local folder.

Answers are stored before they are checked. Any change of a prompt changes the keys
of stored answers.

Shapes: B captions of a batch, T tokens of the prompt, N new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.generation.chat.answers import SEEDS, Answer, no_answer
from compo_pipeline.generation.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.generation.chat.local import LocalModel, is_cut
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    Opening,
    Role,
)
from compo_pipeline.generation.counterfactuals.editors.checks import clean_answer, reason_to_reject
from compo_pipeline.generation.counterfactuals.settings import (
    EditorEndpointSettings,
    EditorLocalSettings,
)

MODEL = "a causal language model"
"""What a local folder must hold, for errors."""

_SYSTEM = (
    "You edit captions of photographs. You are given one caption in English and answer with the "
    "edited caption alone: one line, no quotes, no label, no explanation. Keep the wording, the "
    "length and the style of the caption wherever the task does not ask for a change."
)
_TASKS: dict[Role, str] = {
    "negative": (
        "Make the smallest edit after which the caption is false of the photograph it was written "
        "for. Change exactly one thing: an object, an attribute such as colour, size or material, "
        "a number, an action, a spatial relation, or which of two things has which property. "
        "The result is fluent, and a photograph of it could exist. Never use a synonym, never just "
        "add or leave out words, never use a negation."
    ),
    "positive": (
        "Say exactly the same with a small edit: replace a word by a true synonym, change the "
        "order of things that are listed, or turn an active sentence into a passive one. Nothing "
        "that the caption says may be added, left out, made more general or more special."
    ),
}
_EXAMPLES: dict[Role, tuple[tuple[str, str], ...]] = {
    "negative": (
        ("Two horses drink from a stone trough.", "Two goats drink from a stone trough."),
        ("a lady in a green coat beside a white van", "a lady in a white coat beside a green van"),
        ("A kite hangs above the roof of a barn", "A kite hangs behind the roof of a barn"),
        ("Three empty bottles stand on a shelf.", "Five empty bottles stand on a shelf."),
        ("A boy opens a suitcase on his bed.", "A boy closes a suitcase on his bed."),
        ("a parrot looking at a sleeping cat", "a cat looking at a sleeping parrot"),
    ),
    "positive": (
        ("Two horses drink from a stone trough.", "Two horses are drinking from a stone trough."),
        ("a tiny boat near an old pier", "a very small boat close to an old pier"),
        ("A fork and a spoon lie on a napkin.", "A spoon and a fork lie on a napkin."),
        ("A girl is pushing a red cart.", "A red cart is being pushed by a girl."),
        ("Someone took a photo of a couch", "Someone took a picture of a sofa"),
    ),
}


def edit_messages(caption: str, role: Role) -> list[dict[str, str]]:
    """Chat messages that ask a model to edit a caption: task, examples, caption on one line."""
    turns: list[dict[str, str]] = [{"role": "system", "content": f"{_SYSTEM} {_TASKS[role]}"}]
    for given, edited in _EXAMPLES[role]:
        turns.append({"role": "user", "content": given})
        turns.append({"role": "assistant", "content": edited})
    turns.append({"role": "user", "content": " ".join(caption.split())})
    return turns


def as_plain_text(chat: list[dict[str, str]]) -> str:
    """Chat as one text for a model to continue, for models without a chat template."""
    system, *turns, last = (message["content"] for message in chat)
    pairs = zip(turns[::2], turns[1::2], strict=True)
    examples = "".join(f"Caption: {given}\nEdited: {edited}\n\n" for given, edited in pairs)
    return f"{system}\n\n{examples}Caption: {last}\nEdited:"


PROMPTS = (_SYSTEM, _TASKS, _EXAMPLES, as_plain_text(edit_messages("", "negative")))
"""All prompts for language models."""


def attempt_seed(seed: int, request: EditRequest, attempt: int) -> int:
    """Sampling seed of an attempt to edit; equal captions have equal seeds and share answers."""
    return seeding.digest(seed, request.caption, request.role, attempt) % SEEDS


def check_answer(request: EditRequest, answer: Answer, attempt: int) -> EditedCaption | str:
    """The edited caption in a model's answer, or why the answer is rejected.

    Attempts are counted from 0.
    """
    text = clean_answer(answer.text, request.caption)
    refused = no_answer(answer) or reason_to_reject(request, text)
    if not refused:
        return EditedCaption(text, f"attempt {attempt + 1}")
    asked = "asked once" if attempt == 0 else f"asked {attempt + 1} times"
    return f"{asked}; the last answer was refused: {refused} ({text[:200]!r})"


class EndpointEditor:
    """Caption editor that asks a language model on a server, and stores each answer."""

    name: ClassVar[str] = "endpoint"
    concurrent: ClassVar[bool] = False

    def __init__(self, settings: EditorEndpointSettings, key: str, opening: Opening) -> None:
        self._settings, self._seed = settings, opening.seed
        cache = opening.state / "endpoint.sqlite"
        self._endpoint = Endpoint(settings, key=key, seed=self._seed, cache=cache)
        # Without server address and retries, which change no text.
        own = (settings.model, settings.temperature, settings.max_tokens, settings.seeded)
        parameters = (*own, dict(settings.more))
        sampling = settings.attempts, self._seed
        self.settings_fingerprint = hash_of(self.name, parameters, *sampling, PROMPTS)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield an edited caption, or why there is none, for each request, in their order.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        for result in self._endpoint.each(self._edit_one, requests):
            yield str(result) if isinstance(result, NoAnswer) else result

    def _edit_one(self, ask: Ask, request: EditRequest) -> EditedCaption | str:
        """Edit one caption: ask the model until an answer passes the checks."""
        own = self._settings
        for attempt in range(own.attempts):
            messages = edit_messages(request.caption, request.role)
            body = request_body(own, messages, attempt_seed(self._seed, request, attempt))
            answer = ask(hash_of({"attempt": attempt, **body}), body)
            result = check_answer(request, answer, attempt)
            if isinstance(result, EditedCaption):
                break
        return result


class TransformersEditor:
    """Caption editor that runs a language model in this process, greedily, and stores its answers.

    Each caption is asked for once.
    """

    name: ClassVar[str] = "transformers"
    concurrent: ClassVar[bool] = False

    def __init__(self, settings: EditorLocalSettings, key: str, opening: Opening) -> None:
        self._settings = settings
        self._local = LocalModel(settings, key, MODEL, "AutoModelForCausalLM", "AutoTokenizer")
        self._store = KeyValueStore(opening.state / "transformers.sqlite", Answer)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Hash of all settings that change the texts, and of the model's files."""
        parameters = (self._settings.max_tokens, self._settings.dtype)
        return hash_of(self.name, parameters, self._local.fingerprint, PROMPTS)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | str]:
        """Yield an edited caption, or why there is none, for each request, in their order.

        The model is loaded for the first answer that is not stored.

        Raises:
            SettingsError: transformers is not installed, or the folder holds no such model.
        """
        answers = self._local.in_batches(requests, self._answers)
        for request, answer in zip(requests, answers, strict=True):
            yield check_answer(request, answer, 0)

    def _answers(self, requests: Sequence[EditRequest]) -> list[Answer]:
        """Answers to a batch: stored ones, and newly generated ones."""
        own = self.settings_fingerprint
        keys = [hash_of(own, request.caption, request.role) for request in requests]
        stored = self._store.get(keys)
        asked = zip(keys, requests, strict=True)
        if new := {key: request for key, request in asked if key not in stored}:
            answers = self._generate_answers(list(new.values()))
            # The first answer to a request counts, whichever process got it.
            self._store.put(dict(zip(new, answers, strict=True)), replace=False)
            stored |= self._store.get(new)
        return [stored[key] for key in keys]

    def _generate_answers(self, requests: Sequence[EditRequest]) -> list[Answer]:
        """Generate the answers to a batch of requests."""
        network, tokenizer = self._local.loaded
        rows = tokenizer(
            [_prompt(request, tokenizer) for request in requests],
            return_tensors="pt",
            padding=True,
            return_token_type_ids=False,
            add_special_tokens=tokenizer.chat_template is None,
        ).to(network.device)  # [B, T]
        written = self._local.generate(rows, pad_token_id=tokenizer.pad_token_id)
        new = written[:, rows["input_ids"].shape[1] :].tolist()  # [B, N]
        most, ends = self._settings.max_tokens, network.generation_config.eos_token_id
        return [_decode(row, tokenizer, is_cut(row, most, ends)) for row in new]


def _prompt(request: EditRequest, tokenizer: Any) -> str:
    """Prompt of a request as text, in the model's chat template if it has one."""
    chat = edit_messages(request.caption, request.role)
    if tokenizer.chat_template is None:
        return as_plain_text(chat)
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def _decode(tokens: list[int], tokenizer: Any, full: bool) -> Answer:
    """Answer decoded from new token ids, `full` if they reach the limit without an end.

    A model without a chat template continues with further captions: its answer is the first line.
    """
    text = str(tokenizer.decode(tokens, skip_special_tokens=True))
    if tokenizer.chat_template is not None:
        return Answer(text, full)
    first, *more = text.lstrip().split("\n", 1)
    return Answer(first, full and not more)
