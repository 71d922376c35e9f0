"""Rows of captions by their split."""

from __future__ import annotations

from collections.abc import Iterable

from compo_pipeline.records import Caption


def training_rows(captions: Iterable[Caption], split: str) -> list[Caption]:
    """The captions of the split that trains.

    Raises:
        ValueError: there is none.
    """
    captions = list(captions)
    rows = [caption for caption in captions if caption.split == split]
    if not rows:
        there = sorted({caption.split for caption in captions})
        raise ValueError(
            f"views.split: no valid caption is of the split '{split}' (splits: {there}); "
            "see data.splits and the quarantine table"
        )
    return rows
