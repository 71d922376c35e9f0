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

from compo_pipeline.benchmarks.files import Record, read_files, subtasks_of, tail_of
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask

NAME = "negbench"
_CHOICES = tuple(f"{name}_mcq_llama3.1_rephrased" for name in ("COCO_val", "VOC2007", "synthetic"))


def load(root: Path, images: Path) -> list[Subtask]:
    """Load NegBench: retrieval subtasks, and multiple choice with a subtask for each template."""
    subtasks = []
    for file in read_files(root, "*.csv"):
        if "captions" in file.content[0]:
            subtasks += subtasks_of(NAME, "retrieval", images, _retrieval_items(file, images))
        else:
            # The official code takes the first of equal candidates, of all but the synthetic
            # images the right one.
            first = all(f"{row.get('correct_answer')}" == "0" for row in file.content)
            choices = subtasks_of(NAME, "image_to_text", images, _choice_items(file, images))
            subtasks += [replace(subtask, ties_right=first) for subtask in choices]
    return subtasks


def _choice_items(file: Record, images: Path) -> Iterator[tuple[str, Item]]:
    """Yield subtask name and item of each multiple-choice row: one right caption, others wrong."""
    for row in file.records():
        keys = takewhile(row.content.__contains__, (f"caption_{place}" for place in count()))
        texts = [row.text(key) for key in keys]
        right = row.choice_index("correct_answer", len(texts))
        wrong = (*texts[:right], *texts[right + 1 :])
        image = tail_of(row.text("image_path"), images)
        template = row.get("correct_answer_template")
        name = f"{file.name}_{template}" if template else file.name
        yield name, Item(row.name, image, (texts[right],), wrong)


def _retrieval_items(file: Record, images: Path) -> Iterator[tuple[str, Item]]:
    """Yield subtask name and item of each retrieval row: an image with all its captions."""
    for row in file.records():
        image = tail_of(row.text("filepath"), images)
        yield file.name, Item(row.name, image, row.texts("captions"))


_TYPES = ("positive", "negative", "hybrid")
_TOTALS = {
    name: Mean(tuple(f"{name}_{kind}" for kind in _TYPES), by_items=True) for name in _CHOICES
}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="NegBench",
    load=load,
    headline=lambda metric, name: name in _TOTALS or metric in ("i2t_r5", "t2i_r5"),
    averages={"accuracy": _TOTALS},
    source="github.com/m1k2zoo/negbench: images/*.csv; images: COCO val2017, VOC2007, synthetic",
)
