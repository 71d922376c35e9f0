"""Rows of captions by their split."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from compo_pipeline.records import Caption

log = logging.getLogger(__name__)


def training_rows(captions: Iterable[Caption], split: str) -> list[Caption]:
    """The captions of the split that trains; those without a sentence are left out.

    Raises:
        ValueError: there is none.
    """
    captions = list(captions)
    own = [caption for caption in captions if caption.split == split]
    rows = [caption for caption in own if caption.sentences]
    if len(rows) < len(own):
        log.warning("%d captions without a sentence do not train.", len(own) - len(rows))
    if not rows:
        there = sorted({caption.split for caption in captions})
        raise ValueError(
            f"views.split: no valid caption is of the split '{split}' (splits: {there}); "
            "see data.splits and the quarantine table"
        )
    return rows
