"""Rows by split."""

import pytest

from compo_pipeline.records import Caption, training_rows


def row(name: str, split: str) -> Caption:
    return Caption(name, name, f"{name}.png", 4, 3, ("A cat.",), "test", split)


def test_rows_that_train_are_those_of_the_split() -> None:
    rows = [row("a", "val"), row("b", "train"), row("c", "train")]
    assert training_rows(iter(rows), "train") == rows[1:]
    with pytest.raises(
        ValueError, match=r"no valid caption is of the split 'test' .*'train', 'val'"
    ):
        training_rows(rows, "test")
