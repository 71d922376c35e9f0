"""Caption editor that asks a language model behind an endpoint.

Answers are stored before they are checked. Any change of a prompt changes the keys
of stored answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from compo_pipeline.core import seeding
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.generation.chat.answers import SEEDS, Answer, no_answer
from compo_pipeline.generation.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    Opening,
    Role,
)
from compo_pipeline.generation.counterfactuals.editors.checks import clean_answer, reason_to_reject
from compo_pipeline.generation.counterfactuals.settings import EditorEndpointSettings

_ATTEMPTS = 3  # times that a caption is sent, each with another seed, until an answer passes
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
_PROMPTS = (_SYSTEM, _TASKS, _EXAMPLES)


def edit_messages(caption: str, role: Role) -> list[dict[str, str]]:
    """Chat messages that ask a model to edit a caption: task, examples, caption on one line."""
    turns: list[dict[str, str]] = [{"role": "system", "content": f"{_SYSTEM} {_TASKS[role]}"}]
    for given, edited in _EXAMPLES[role]:
        turns.append({"role": "user", "content": given})
        turns.append({"role": "assistant", "content": edited})
    turns.append({"role": "user", "content": " ".join(caption.split())})
    return turns


def attempt_seed(seed: int, request: EditRequest, attempt: int) -> int:
    """Sampling seed of an attempt to edit.

    Equal captions have equal seeds and share answers.
    """
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
        self._endpoint = Endpoint(settings, key=key, cache=cache)
        # Without server address and retries, which change no text.
        own = (settings.model, settings.temperature, settings.max_tokens)
        parameters = (*own, dict(settings.more))
        self.settings_fingerprint = hash_of(self.name, parameters, self._seed, _PROMPTS)

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
        for attempt in range(_ATTEMPTS):
            messages = edit_messages(request.caption, request.role)
            body = request_body(own, messages, attempt_seed(self._seed, request, attempt))
            answer = ask(hash_of({"attempt": attempt, **body}), body)
            result = check_answer(request, answer, attempt)
            if isinstance(result, EditedCaption):
                break
        return result
