"""Form of captions: marks that are no part of a text, texts that are no captions, and repeats."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table, codes

if TYPE_CHECKING:
    import pyarrow as pa

URL = re.compile(r"(?:https?://|www\.)\S+", re.IGNORECASE)
FILE_NAME = re.compile(
    r"\A(?:.*\.(?:jpe?g|png|gif|webp|avif|heic|tiff?|bmp)|(?=\S*\d{3})[\w.-]+)\Z", re.IGNORECASE
)
MARKUP = re.compile(
    r"</?(?:a|b|i|p|br|em|h[1-6]|li|ol|td|tr|ul|div|img|span|table|strong|box|ref|quad)\b[^<>]*>"
    r"|<loc_\d+>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,30});", re.IGNORECASE)
# Joiners belong to emoji and to many scripts, but to no Latin text.
_ZERO_WIDTH = re.compile(
    "[\u00ad\u200b\u200e\u200f\u2060\ufeff]|(?<=[\0-\u024f])[\u200c\u200d]|[\u200c\u200d](?=[\0-\u024f])"
)
# Thai, Lao, Myanmar, Khmer, Japanese and Chinese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{6}")

FORMS = {
    "HTML entities, cleaned": _ENTITY,
    "zero-width characters, cleaned": _ZERO_WIDTH,
    "markup": MARKUP,
    "an address": URL,
    "nothing but a file name": FILE_NAME,
    "words without spaces between them": _UNSPACED,
}
"""What to find in captions, by what it is called."""
_MARKS = ("&", "<", "//", "www.", "WWW.")
_CLEANED = (_ENTITY, _ZERO_WIDTH)
_MANY = 0.01  # of the captions, from which on a form is a warning
_EXAMPLES = 3
_SHOWN = 80  # characters of an example in a warning


def plain(text: str) -> str:
    """A text on one line, without zero-width characters, with HTML's entities as characters."""
    for _ in range(2):  # Text that went through two web pages has "&amp;quot;".
        if "&" in text:
            text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return " ".join((text if text.isascii() else _ZERO_WIDTH.sub("", text)).split())


class FormCounts:
    """Numbers of captions by what is found in them (`FORMS`), with examples."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {name: [] for name in FORMS}
        self._counts = dict.fromkeys(FORMS, 0)

    def add(self, text: str, cleaned: str) -> None:
        """Count a caption, as the source has it and as `plain` makes it."""
        # Most captions are ruled out by this, in a fraction of the patterns' time.
        plain_words = text.isascii() and " " in text and "." not in text[-5:-1]
        if plain_words and not any(mark in text for mark in _MARKS):
            return
        for name, pattern in FORMS.items():
            shown = text if pattern in _CLEANED else cleaned
            if pattern.search(shown):
                self._counts[name] += 1
                if len(self._found[name]) < _EXAMPLES:
                    self._found[name].append(shown)

    def report(self) -> dict[str, Any]:
        """Number of captions and examples by what is found in them."""
        return {
            name: {"captions": count, "examples": self._found[name]}
            for name, count in self._counts.items()
        }


def first_sentences(rows: Table[Caption]) -> pa.ChunkedArray:
    """First sentence of each row [n], the empty text where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    firsts = pc.list_slice(rows.column("sentences"), 0, 1).cast(pa.list_(pa.string()))
    return pc.binary_join(firsts, "")


def distinct_texts(rows: Table[Caption]) -> dict[str, Any]:
    """Numbers of images and of distinct first sentences by split, with the most frequent one."""
    found = {}
    for split in rows.column("split").unique().to_pylist():
        own = rows.having("split", [split])
        texts = first_sentences(own)
        numbers = codes(texts)[np.asarray(texts) != ""]
        counts = np.bincount(numbers, minlength=1)
        top = int(counts.argmax())
        found[split] = {
            "images": len(own.column("image").unique()),
            "texts": int((counts > 0).sum()),
            "most_frequent": texts.unique()[top].as_py(),
            "rows": int(counts[top]),
        }
    return found


def warnings(report: Mapping[str, Any]) -> list[str]:
    """What the ingest report says of captions that train badly, a text each.

    Args:
        report: of ingest, with `distinct_texts`, `captions` and `forms`.
    """
    found = []
    shared = {
        split: one
        for split, one in report["distinct_texts"].items()
        if 0 < 2 * one["texts"] < one["images"]
    }
    if shared:
        counts = (f"{one['texts']} for {one['images']} ({name})" for name, one in shared.items())
        example = next(iter(shared.values()))["most_frequent"]
        found.append(
            f"few texts for many images: {', '.join(counts)}, such as {_quoted(example)}; "
            "contrastive training needs a different caption for each image, names of classes are "
            "for zero-shot classification (docs/reference/benchmarks.md#zero-shot-sets)"
        )
    for name, one in report["forms"].items():
        if FORMS[name] in _CLEANED or one["captions"] <= _MANY * report["captions"]:
            continue
        remedy = ""
        if FORMS[name] is _UNSPACED:
            remedy = (
                ", which ingest cannot count: ingest.sentences.least_words=1, "
                "validation.rules.shortest_sentence=null and the check of the language "
                "(validation.known_words) are in docs/tutorials/your-photos.md"
                "#captions-in-other-languages"
            )
        found.append(
            f"{name} in {one['captions']} of {report['captions']} captions, such as "
            f"{_quoted(one['examples'][0])}{remedy}"
        )
    return found


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
