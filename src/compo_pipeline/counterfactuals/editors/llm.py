"""Caption editors that ask a language model: prompts, seeds, answers and their store.

Any change of a prompt changes `prompts_fingerprint`, and with it the keys of stored answers.
"""

from __future__ import annotations

from typing import TypedDict

from compo_pipeline.chat.answers import SEEDS, Answer, no_answer
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    Role,
)
from compo_pipeline.counterfactuals.editors.checks import clean_answer, reason_to_reject
from compo_pipeline.run import seeding


class Message(TypedDict):
    """One message of a chat, in the form of the chat completions API."""

    role: str
    content: str


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


def edit_messages(caption: str, role: Role) -> list[Message]:
    """Chat messages that ask a model to edit a caption: task, examples, caption on one line."""
    turns: list[Message] = [{"role": "system", "content": f"{_SYSTEM} {_TASKS[role]}"}]
    for given, edited in _EXAMPLES[role]:
        turns.append({"role": "user", "content": given})
        turns.append({"role": "assistant", "content": edited})
    turns.append({"role": "user", "content": " ".join(caption.split())})
    return turns


def as_plain_text(chat: list[Message]) -> str:
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


def check_answer(request: EditRequest, answer: Answer, attempt: int) -> EditedCaption | EditFailure:
    """The edited caption in a model's answer, or a failure if the answer is rejected.

    Attempts are counted from 0.
    """
    text = clean_answer(answer.text, request.caption)
    refused = no_answer(answer) or reason_to_reject(request, text)
    if not refused:
        return EditedCaption(text, f"attempt {attempt + 1}")
    asked = "asked once" if attempt == 0 else f"asked {attempt + 1} times"
    return EditFailure(f"{asked}; the last answer was refused: {refused} ({text[:200]!r})")
