"""Answers of models, the keys under which they are stored, and the extraction of texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

SEEDS = 2**31
"""What servers take for a seed: numbers below."""

_THINK = r"<(?:think|thinking|reasoning)>|◁think▷|<unused94>"
_THOUGHT_OUT = r"</(?:think|thinking|reasoning)>|◁/think▷|<unused95>"
# Some templates open the thoughts in the prompt.
_THOUGHT = re.compile(
    rf"(?:\A|{_THINK}).*?(?:{_THOUGHT_OUT})|(?:{_THINK}).*", re.DOTALL | re.IGNORECASE
)
_FENCE = re.compile(r"^```[a-z]*\n(.*?)\n?```", re.DOTALL | re.MULTILINE)
# What a server leaves of a chat template: all up to the mark of the model's turn, and tokens.
_TURN = re.compile(
    r"\A\s*(?:(?:[<\[#]|user\b|human\b|system\b|a chat between\b).*?)?(?:\[/INST\]"
    r"|<\|im_start\|>assistant\b|<\|assistant\|>|<start_of_turn>model\b"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>"
    r"|(?:#{1,4} ?|gpt4 correct )?assistant *[:\n]|model *\n)",
    re.DOTALL | re.IGNORECASE,
)
_TOKEN = re.compile(
    r"<\|\w+\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]"
    r"|</?(?:image|img|bos|eos|pad|unk|answer|caption|description|output|response)>"
    r"|\n *(?:#{1,4} ?)?(?:user|human|assistant):",
    re.IGNORECASE,
)
_WHAT = (
    r"(?:captions?|descriptions?|paragraph|summary|alt(?:ernative)? text|answer|output|response"
    r"|json|what i see|negative|positive|edit|version|sentence|paraphrase|result)"
)
_KIND = (
    r"(?:(?:the|an?|one|my|your|image|photo|picture|short|brief|long|detailed|concise|factual|final"
    r"|possible|suggested|edited|negative|positive|rewritten|hard),?\s+)*"
)
PREAMBLE = re.compile(
    r"\A[*_#>\s]*(?:"
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|alright|no problem)\s*[!.,:]"
    r"|i(?:['’]d| would) be (?:happy|glad) to\b[^.!:\n]*[.!:]"
    rf"|(?:{_KIND}{_WHAT}(?: (?:for|of|could|would|is)\b[^:\n.]{{0,60}})?"
    rf"|(?:here(?: is|['’]s)|below is|based on)\b[^:\n]{{0,80}}\b(?:{_WHAT}|describ\w+)\b[^:\n]*"
    r"|here you go|(?:the|this) (?:image|picture|photo) (?:can|could|may) be described[^:\n]*)"
    r"[*_ ]{0,4}(?::|(?=\n))[*_]{0,4}"
    r")\s*",
    re.IGNORECASE,
)
"""What a model writes before its text: "Sure!", "Here is the caption:", a label."""
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”')
_NOT = "(?:n['’]t| not)"
_IMAGE = "(?:image|picture|photo)"
# Captions say none of this outside of quotation marks.
_REFUSED = re.compile(
    rf"\b(?:i(?: a|['’])m (?:sorry|unable|not|ready|just|only|an? (?:\w+ ){{0,2}}(?:ai|model)\b)"
    rf"|i (?:ca(?:n?{_NOT}|nnot)|(?:do|did|could|wo|will|would){_NOT}|(?:would )?(?:first )?need"
    r"|apologi[sz]e|understand|hope|should|would be|have no|will (?:describe|now))"
    r"|i['’](?:ll|d)|as an? (?:[\w-]+ ){0,2}(?:ai|language model|assistant)\b[^.]{0,30},"
    # It speaks to the user, or of the task.
    r"|(?:please|(?:can|could|if|once) you(?: please)?|send me)\W+(?:try |re-?)?"
    rf"(?:provide|upload|shar|attach|send|submit|tell)\w*\b[^.?!]{{0,40}}\b(?:{_IMAGE}|it|me)"
    r"|(?:would you|you would|you['’]d) like(?: me| to| more| any|\?)"
    rf"|you (?:want me|forgot|have{_NOT}|did{_NOT})"
    r"|you are an? [^.]{0,40}(?:assistant|model)|your (?:message|request|question)"
    r"|(?:help|assist|thank) you|can i (?:help|assist)|let(?: me|['’]s)|feel free to"
    r"|the user (?:wants|asks|asked|is asking|uploaded|provided)"
    rf"|describe (?:this|the) {_IMAGE}"
    # There is no image, or the model or its server may not or cannot show it.
    rf"|(?:no|without the|any) {_IMAGE}(?: (?:was|is|has been))?"
    r" (?:here|attached|provided|uploaded|included|available|for me|in (?:your|our)|i\b)"
    rf"|(?:the|an) {_IMAGE}(?: (?:is|did|was|can|could){_NOT}| cannot| failed to)"
    r" (?:available|attached|provided|come|be|load)"
    rf"|the {_IMAGE} is (?:blank|too \w+ to)|{_IMAGE} not found"
    r"|without the image|(?:content|usage) polic(?:y|ies)|(?:my|our) guidelines"
    r"|not appropriate for me)"
    r"|\A(?:sorry|unfortunately|describe|(?:unable|failed) to|(?:could not|cannot) \w+)\b"
    r"|\A(?:what|how|which|who|where|can|could|do|does|is|are|would)\b[^.!]*\?\Z"
    r"|\A(?:internal server |cuda )?(?:error(?::|\Z)|out of memory|request failed)",
    re.IGNORECASE,
)


class Answer(NamedTuple):
    """A model's answer as text, unchecked, with refusal, numbers of tokens and date.

    Attributes:
        text: text as the model wrote it.
        cut: whether it reached its limit of tokens.
        refusal: why the model or its server says that it did not answer; empty where it did.
        prompt_tokens: tokens of the question, image included. 0 if the server does not count them.
        answer_tokens: tokens of the answer. 0 if the server does not count them.
        date: when it came, in UTC; empty where it is not stored.
        first: likeliest first tokens with log-probabilities, if the request asks for them.
    """

    text: str
    cut: bool
    refusal: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    date: str = ""
    first: tuple[tuple[str, float], ...] = ()


def dated(answer: Answer) -> Answer:
    """Copy of an answer with the current time in UTC as its date."""
    return answer._replace(date=datetime.now(UTC).isoformat(timespec="seconds"))


def bare_text(text: str) -> str:
    """A model's text without its thoughts, chat template, Markdown fence, and JSON around it."""
    text = _TURN.sub("", _THOUGHT.sub("", text, count=1), count=1)
    text = next(filter(None, map(str.strip, _TOKEN.split(text))), "")
    if fenced := _FENCE.search(text):
        text = fenced[1].strip()
    return _only_text(text) if text.startswith(("{", "[")) else text


def _only_text(text: str) -> str:
    """The one text in a JSON value, or the unchanged text if it is no JSON or has several."""
    try:
        texts = list(_texts(json.loads(text)))
    except (ValueError, RecursionError):
        return text
    return texts[0].strip() if len(texts) == 1 else text


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, but those of an error."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "error":
                yield from _texts(each)


def no_answer(answer: Answer) -> str:
    """Reason why a model gave no answer (refused, or cut off), empty if it gave one."""
    if answer.refusal:
        return f"the model refused: {answer.refusal[:200]!r}"
    return "cut off by max_tokens" if answer.cut else ""


def refuses(text: str) -> bool:
    """Whether a model's text speaks to the user ("I cannot see ...", "Please upload the image").

    Quoted words do not count: an image may show them.
    """
    return _REFUSED.search(_QUOTED.sub("", text).strip()) is not None
