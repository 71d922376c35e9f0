"""Captions as people and captioning models write them, cleaned and split into sentences.

The rules are those of the CLIC paper's data preparation: they know captions, not prose at large.
"""

from __future__ import annotations

import re

_VERBS = "displays|showcases|shows|is|features|depicts|illustrates|demonstrates"
_OPENING = re.compile(
    rf"(?:(?:(?:The|This) (?:image|picture) (?:{_VERBS})"
    r"|This (?:image|picture) appears to be"
    r"|a (?:digital|graphic) representation of"
    r"|a collection of"
    r"|a screenshot of)\b ?:? ?)+"
)

# Abbreviations that usually precede a name. Those that as often end a sentence (etc., a.m.,
# Inc.) are left out: a capital after them mostly opens the next one.
_ABBREVIATION = re.compile(
    r"(?<![^\s(\[\"'“‘])"
    r"(?:Mr|Mrs|Ms|Mx|Dr|Prof|Rev|Hon|Sr|Jr|St|Ste|Mt|Ft|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Cpl|Pvt|Gov"
    r"|Sen|Rep|Pres|Supt|Fig|Vol|vs|cf|approx|ca"
    r"|(?:[^\W\d_]\.)*[^\W\d_])$"  # initials and dotted ones: J., U.S., e.g.
)
_BOUNDARY = re.compile(r"[.?!] (?=(.))")
_WORD = re.compile(r"\w+")


def clean(caption: str) -> tuple[str, str | None]:
    """Caption on one line without an opening such as "The image shows", and the removed opening.

    Matching is case-sensitive. Several phrases in a row go together ("This image appears to be
    a screenshot of"), and so does a colon after them.

    Returns:
        The cleaned text, and the opening that was removed or None.
    """
    text = " ".join(caption.split())
    opening = _OPENING.match(text)
    if opening is None:
        return text, None
    return text[opening.end() :], opening.group().rstrip(" :")


def split(text: str) -> list[str]:
    """Split a cleaned caption into sentences, at . ? or ! before a space and a capital letter.

    A period after a title, an initial or a dotted abbreviation (Dr., J., U.S.) ends none.
    """
    sentences = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        end = boundary.start()
        abbreviated = text[end] == "." and _ABBREVIATION.search(text, start, end)
        if boundary.group(1).isupper() and not abbreviated:
            sentences.append(text[start : end + 1])
            start = boundary.end()
    return [sentence for sentence in [*sentences, text[start:]] if sentence]


def word_count(text: str) -> int:
    """Number of words of a text, counted as runs of letters, digits and underscores."""
    return len(_WORD.findall(text))


def bare(text: str) -> str:
    """Case-folded sentence without closing punctuation, for comparison of sentences."""
    return text.casefold().rstrip(" .?!")
