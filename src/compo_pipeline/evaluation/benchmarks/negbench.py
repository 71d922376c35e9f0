"""NegBench: CSV files of multiple choice and of retrieval, with negated captions.

Multiple choice: image_path, caption_0, caption_1, ..., correct_answer (from 0), and a
correct_answer_template (positive, negative or hybrid) where there are four captions. Retrieval:
filepath, captions (a Python list). Of an image's path, which is that of the authors' machine, the
longest tail that is a file below the images counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    field_of,
    index_of,
    read_rows,
    subtasks_of,
    tail_of,
    texts_of,
)

NAME = "negbench"
_CHOICES = tuple(f"{name}_mcq_llama3.1_rephrased" for name in ("COCO_val", "VOC2007", "synthetic"))


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every CSV file in the folder; multiple choice is divided by its templates."""
    subtasks = []
    for file, rows in read_rows(root, "*.csv").items():
        if "captions" in rows[0][1]:
            subtasks += subtasks_of(NAME, "retrieval", images, _retrieval(file, rows, images))
        else:
            # The official code takes the first of equal candidates, of all but the synthetic
            # images the right one.
            first = all(f"{row.get('correct_answer')}" == "0" for _, row in rows)
            choices = subtasks_of(NAME, "image_to_text", images, _choices(file, rows, images))
            subtasks += [replace(subtask, ties_right=first) for subtask in choices]
    return subtasks


def _choices(file: str, rows: list[tuple[str, Any]], images: Path) -> Iterator[tuple[str, Item]]:
    for number, (where, row) in enumerate(rows):
        keys = takewhile(row.__contains__, (f"caption_{place}" for place in count()))
        texts = [field_of(row, key, where) for key in keys]
        right = index_of(row, "correct_answer", len(texts), where)
        wrong = (*texts[:right], *texts[right + 1 :])
        image = tail_of(field_of(row, "image_path", where), images)
        template = row.get("correct_answer_template")
        name = f"{file}_{template}" if template else file
        yield name, Item(f"{number}", image, (texts[right],), wrong)


def _retrieval(file: str, rows: list[tuple[str, Any]], images: Path) -> Iterator[tuple[str, Item]]:
    for number, (where, row) in enumerate(rows):
        image = tail_of(field_of(row, "filepath", where), images)
        yield file, Item(f"{number}", image, texts_of(row, "captions", where))


_TYPES = ("positive", "negative", "hybrid")
_TOTALS = {
    name: Mean(tuple(f"{name}_{kind}" for kind in _TYPES), by_items=True) for name in _CHOICES
}

BENCHMARK = Benchmark(
    name=NAME,
    label="NegBench",
    load=load,
    headline=lambda metric, name: name in _TOTALS or metric in ("i2t_r5", "t2i_r5"),
    averages={"accuracy": _TOTALS},
    source="github.com/m1k2zoo/negbench: images/*.csv; images: COCO val2017, VOC2007, synthetic",
)
