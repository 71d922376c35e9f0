"""Answers of models, the keys under which they are stored, and what surrounds a text in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

SEEDS = 2**31
"""What servers take for a seed: numbers below."""

_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[a-z]*\n(.*?)\n?```$", re.DOTALL)
REFUSAL = (
    r"i'm sorry|i’m sorry|sorry|i am sorry|i can(?:no|')t|i can’t|i am unable|i'm unable|i’m unable"
    r"|as an ai|unfortunately, i"
)
"""Beginnings of an answer by which a model refuses, as a pattern in lower case."""
_REFUSED = re.compile(
    rf"^(?:{REFUSAL})\b"
    r"|\b(?:i can(?:no|')t|i can’t|i am unable to|i'm unable to|i’m unable to|i am not able to)"
    r" (?:see|view|describe|identify|process|assist|help|provide)\b",
    re.IGNORECASE,
)


class Answer(NamedTuple):
    """A model's answer as text, unchecked, with refusal, numbers of tokens and date.

    Attributes:
        text: as the model wrote it.
        cut: whether it reached its limit of tokens.
        refusal: why the model or its server says that it did not answer; empty where it did.
        prompt_tokens: of the question, image included; 0 where the server does not count them.
        answer_tokens: of the text, likewise.
        date: when it came, in UTC; empty where it is not stored.
    """

    text: str
    cut: bool
    refusal: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    date: str = ""


def answer_key(asked: Mapping[str, Any]) -> str:
    """Key under which an answer is stored: a hash of model, prompt and parameters."""
    text = json.dumps(asked, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def bare_text(text: str) -> str:
    """A model's text without its reasoning (`<think>`) and the Markdown fence around it."""
    return _FENCE.sub(r"\1", _THOUGHT.sub("", text).strip()).strip()


def no_answer(answer: Answer) -> str:
    """Reason why a model gave no answer (refused, or cut off); empty if it gave one."""
    if answer.refusal:
        return f"the model refused: {answer.refusal[:200]!r}"
    return "cut off by max_tokens" if answer.cut else ""


def refuses(text: str) -> bool:
    """Whether a model's text is a refusal ("I'm sorry, ...", "I cannot see ...")."""
    return _REFUSED.search(text) is not None
