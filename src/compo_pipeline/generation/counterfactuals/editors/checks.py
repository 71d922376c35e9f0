"""Checks of edited captions, and cleaning of language models' answers.

Language models wrap their answers: quotes, labels, list marks, thoughts. What is certainly no part
of the caption is removed, and the caption's own capital and closing mark are restored, so that
neither distinguishes a synthetic text from a real one. All other flaws are refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from compo_pipeline.core.sentences import split, word_count
from compo_pipeline.generation.chat.answers import PREAMBLE, bare_text, refuses
from compo_pipeline.generation.counterfactuals.contract import EditRequest

_BULLET = re.compile(r"^(?:[-*•>]|\(?\d{1,2}[.)])\s+")
_WRAPPED = tuple(zip("\" “ ' ‘ « ` ** * _".split(), "\" ” ' ’ » ` ** * _".split(), strict=True))
_MARKS = '** __ ` # | \\ < > { } [ ] ( -> → � " “ ” « »'.split()
_CLOSING = re.compile(r"[\s.!?…]*$")
_SPOKEN = re.compile(r"[^\W_]+")
_BOUNDARY = re.compile(r"([.?!])[\"'”’)]* +[\"'“‘(]*(\S)")
_ARTICLES = frozenset({"a", "an", "the"})
_DENIAL = re.compile(r"\b(no|not|without|never|none|nobody|nothing|cannot|neither|nor)\b|n['’]t\b")
_MOST_WORDS = 60
_LONGER = 0.5  # share by which an edit may have more words than its caption
_KEPT = 0.5  # least share of the caption's words that a negative keeps
# Words by which a short text may be longer at any share: "being", "by".
_SPARE = 2


def clean_answer(answer: str, caption: str) -> str:
    """Extract the caption from a model's answer: without quotes, labels and thoughts around it.

    It gets the capital and the closing mark of the original. Several lines stay:
    `reason_to_reject` rejects them.
    """
    text = bare_text(answer)
    before = None
    while text != before:
        before = text
        if not PREAMBLE.match(caption):
            text = PREAMBLE.sub("", text, count=1).strip()
        if not _BULLET.match(caption):
            text = _BULLET.sub("", text, count=1)
        text = _strip_quotes(text, caption)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return _match_caption_ends("\n".join(line for line in lines if line), caption)


def reason_to_reject(request: EditRequest, text: str) -> str:
    """Reason why a text is not a valid edit of a caption, empty for a valid edit."""
    return _form_flaw(request.caption, text) or _meaning_flaw(request, text)


def _form_flaw(caption: str, text: str) -> str:
    """Flaw in the form of an edited text, such as unchanged or too long, empty if none."""
    if not _SPOKEN.search(text):
        return "empty"
    if len(text.splitlines()) > 1:
        return "more than one line"
    if _speaks_of_task(text) and not _speaks_of_task(caption):
        return "talks about the task"
    for mark in _MARKS:
        if text.count(mark) > caption.count(mark):
            return f"holds {mark!r}, which the caption does not"
    if _count_sentences(text) > max(1, _count_sentences(caption)):
        return "more than one sentence"
    words, ours = word_count(text), word_count(caption)
    if words > _MOST_WORDS:
        return f"{words} words, more than {_MOST_WORDS}"
    longest = max(math.floor(ours * (1 + _LONGER)), ours + _SPARE)
    if words > longest:
        return f"{words} words where the caption has {ours}"
    if _SPOKEN.findall(text.casefold()) == _SPOKEN.findall(caption.casefold()):
        return "unchanged"
    return ""


def _speaks_of_task(text: str) -> bool:
    return bool(PREAMBLE.match(text)) or refuses(text)


def _meaning_flaw(request: EditRequest, text: str) -> str:
    """Flaw in the meaning of an edit that its words give away, empty if none.

    A word of the caption may always be missing, whatever the share of words to keep.
    """
    if request.role == "positive":
        denied = {bool(_DENIAL.search(each.casefold())) for each in (request.caption, text)}
        return "denies what the caption says, or the other way round" if len(denied) > 1 else ""
    ours, theirs = (
        [word for word in _SPOKEN.findall(each.casefold()) if word not in _ARTICLES]
        for each in (request.caption, text)
    )
    missing = (Counter(ours) - Counter(theirs)).total()
    if missing > max(1, len(ours) * (1 - _KEPT)):
        return f"keeps less than {_KEPT:.0%} of the caption's words"
    rest = iter(ours)
    if all(word in rest for word in theirs):
        return "only leaves words out"
    return ""


def _count_sentences(text: str) -> int:
    """Number of sentences of a text, including those that begin in lower case."""
    return len(split(_BOUNDARY.sub(lambda found: f"{found[1]} {found[2].upper()}", text)))


def _strip_quotes(text: str, caption: str) -> str:
    """Text without surrounding quotes or Markdown marks, unless its caption has such marks."""
    for opening, closing in _WRAPPED:
        inner = text[len(opening) : -len(closing)]
        whole = text.startswith(opening) and text.endswith(closing) and inner
        if whole and opening not in inner and closing not in inner and opening not in caption:
            return inner.strip()
    return text


def _match_caption_ends(text: str, caption: str) -> str:
    """Text with the case of its first letter and its closing mark adapted to its caption."""
    closing = _CLOSING.search(caption)
    text = _CLOSING.sub("", text) + (closing.group().strip() if closing else "")
    first, ours = text[:1], caption[:1]
    word = text.split(" ", 1)[0]
    if ours.isupper() and first.islower():
        return first.upper() + text[1:]
    # "TV" and "McDonald's" keep theirs; so does a name, which the caption opens with too.
    if ours.islower() and first.isupper() and word[1:] == word[1:].lower() and word != "I":
        return first.lower() + text[1:]
    return text
