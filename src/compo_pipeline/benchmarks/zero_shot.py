"""Zero-shot classification: {"templates": [...], "classes": [...], "items": [...]}, one file a set.

An item is {"filename", "class"}; a template has `{}` where the class goes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compo_pipeline.benchmarks.files import Record, read_files
from compo_pipeline.benchmarks.items import Benchmark, Item, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown, text_problem

NAME = "zero_shot"

log = logging.getLogger(__name__)


def load(root: Path, images: Path) -> list[Subtask]:
    """Load zero-shot classification from the user's own JSON files: a subtask for each file."""
    return [_subtask(file, images) for file in read_files(root, "*.json", kind=dict)]


def _subtask(file: Record, images: Path) -> Subtask:
    """Zero-shot subtask of a JSON file: classes, prompt templates and labelled images."""
    where, templates = file.where, file.texts("templates")
    classes = distinct_classes(where, file.texts("classes"))
    if any("{}" not in template for template in templates):
        raise SettingsError(f"{where}: every template needs a {{}} for the class, got {templates}")
    items = []
    for record in file.list_records("items", "item"):
        label = record.text("class")
        if label not in classes:
            raise SettingsError(f"{record.where}: '{label}' is not one of its classes")
        items.append(Item(record.name, record.text("filename"), (label,)))
    return Subtask(NAME, file.name, ("zero_shot",), images, tuple(items), classes, templates)


def distinct_classes(where: Path | str, names: Sequence[str]) -> tuple[str, ...]:
    """Class names of a zero-shot set without repeats, which are logged: they count as one class.

    Raises:
        SettingsError: fewer than two are left, or one is no text.
    """
    counts = Counter(names)
    if len(counts) < 2 or any(not name.strip() or text_problem(name) for name in counts):
        raise SettingsError(
            f"{where}: expected two different classes or more, got {shown(tuple(counts))}"
        )
    if repeated := [name for name, count in counts.items() if count > 1]:
        message = "%s: class names that are given twice count as one class each: %s"
        log.warning(message, where, shown(repeated))
    return tuple(counts)


BENCHMARK = Benchmark(
    name=NAME,
    role="zero_shot",
    label="Zero-shot",
    load=load,
    headline=lambda metric, name: metric == "top1",
    source="files of your own, one a set (see docs/reference/benchmarks.md)",
    subtask_in_label="first",
    has_official_files=False,
)
