"""Retrieval over a dataset's own captions: every image of a split with its captions.

An image's captions are the first sentences of its rows: COCO's five captions per image, and the
first sentence of a long caption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import Benchmark, Item, Subtask
from compo_pipeline.evaluation.settings import RetrievalSettings, TextProtocol
from compo_pipeline.images.decoding import ACCEPTED, Limits
from compo_pipeline.records import Caption

NAME = "retrieval"

_CLIC_MARKS = re.compile(r"[.!\"()*#:;~]")
_CLIC_WORDS = 30


def clic_text(text: str) -> str:
    """A caption as CLIC's retrieval evaluation reads it (the normalisation of BLIP's loaders)."""
    words = _CLIC_MARKS.sub(" ", text.lower()).split()
    return " ".join(words[:_CLIC_WORDS])


TEXTS: dict[TextProtocol, Callable[[str], str]] = {"raw": str, "clic": clic_text}


def load(
    captions: Iterable[Caption], root: Path, settings: RetrievalSettings, limits: Limits = ACCEPTED
) -> list[Subtask]:
    """One subtask, named after its text protocol.

    Raises:
        SettingsError: the split holds no captions.
    """
    texts: dict[str, list[str]] = {}
    images: dict[str, str] = {}
    splits = set()
    for caption in captions:
        splits.add(caption.split)
        if caption.split == settings.split and caption.sentences:
            images.setdefault(caption.image_id, caption.image)
            texts.setdefault(caption.image_id, []).append(
                TEXTS[settings.text](caption.sentences[0])
            )
    if not texts:
        raise SettingsError(
            f"benchmarks.retrieval.split: no captions of the split '{settings.split}' "
            f"(splits with captions: {', '.join(sorted(splits)) or 'none'}); name one of them, "
            "or null to leave retrieval out"
        )
    items = tuple(Item(key, images[key], tuple(texts[key])) for key in texts)
    return [Subtask(NAME, settings.text, ("retrieval",), root, items, limits=limits)]


BENCHMARK = Benchmark(
    name=NAME,
    label="Retrieval",
    load=None,
    headline=lambda metric, name: metric in ("i2t_r1", "t2i_r1", "i2t_r5", "t2i_r5"),
)
