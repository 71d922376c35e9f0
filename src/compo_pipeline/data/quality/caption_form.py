"""Form of captions: marks outside of the text, texts that are not captions, and repeats."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compo_pipeline.core.records import Caption
from compo_pipeline.core.tables import Table, codes

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
# CoCa's decoder writes the marks of its tokenizer out.
_COCA_MARKS = re.compile(r"^\s*<start_of_text>|<end_of_text>.*$", re.DOTALL)
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
    "words without spaces, which ingest cannot count": _UNSPACED,
}
"""What to find in captions, by what it is called."""
_REMEDY = (
    ": docs/tutorials/your-photos.md#captions-in-other-languages has the settings "
    "(ingest.sentences.least_words=1, validation.known_words)"
)
_CLEANED = (_ENTITY, _ZERO_WIDTH)
_MANY = 0.01  # of the captions, from which on a form is a warning
_EXAMPLES = 3
_SHOWN = 80  # characters of an example in a warning


def plain(text: str) -> str:
    """A text on one line, cleaned of HTML entities, zero-width characters and CoCa's marks."""
    if "<" in text:
        text = _COCA_MARKS.sub("", text)
    if "&" in text:
        for _ in range(2):  # Text that went through two web pages has "&amp;quot;".
            text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    if not text.isascii():
        text = _ZERO_WIDTH.sub("", text)
    return " ".join(text.split())


def count_forms(text: str, cleaned: str, counts: Mapping[str, Any]) -> None:
    """Count the forms found in a caption, with examples.

    Args:
        text: text of the source.
        cleaned: result of `plain` for the source's text.
        counts: counts by name, changed here.
    """
    # Most captions are ruled out by this, in a tenth of the patterns' time.
    marked = "&" in text or "<" in text or "//" in text or "ww." in text.lower()
    if not marked and text.isascii() and " " in text and "." not in text[-5:-1]:
        return
    for name, pattern in FORMS.items():
        shown = text if pattern in _CLEANED else cleaned
        if pattern.search(shown):
            counts[name]["captions"] += 1
            if counts[name]["captions"] <= _EXAMPLES:
                counts[name]["examples"].append(shown)


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
    """Warnings of the ingest report about captions that harm training.

    Args:
        report: report of ingest, with `distinct_texts`, `captions` and `forms`.
    """
    found = []
    shared = {
        split: one
        for split, one in report["distinct_texts"].items()
        if 0 < 2 * one["texts"] < one["images"]
    }
    if shared:
        counts = (f"{one['texts']} for {one['images']} ({name})" for name, one in shared.items())
        example = next(iter(shared.values()))["most_frequent"][:_SHOWN]
        found.append(
            f"few texts for many images: {', '.join(counts)}, such as {example!r}; "
            "contrastive training needs a different caption for each image, names of classes are "
            "for zero-shot classification (docs/reference/benchmarks.md#zero-shot-sets)"
        )
    for name, one in report["forms"].items():
        if FORMS[name] not in _CLEANED and one["captions"] > _MANY * report["captions"]:
            share = f"{one['captions']} of {report['captions']} captions"
            remedy = _REMEDY if FORMS[name] is _UNSPACED else ""
            found.append(f"{name}, in {share}, such as {one['examples'][0][:_SHOWN]!r}{remedy}")
    return found
