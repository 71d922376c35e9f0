"""Zero-shot classification: {"templates": [...], "classes": [...], "items": [...]}, one file a set.

An item is {"filename", "class"}; a template has `{}` where the class goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Subtask,
    field_of,
    list_of,
    read_folder,
    texts_of,
)

NAME = "zero_shot"


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every set in the folder."""
    return [
        _subtask(name, content, f"{root / name}.json", images)
        for name, content in read_folder(root).items()
    ]


def _subtask(name: str, content: Mapping[str, Any], where: str, images: Path) -> Subtask:
    classes, templates = (texts_of(content, key, where) for key in ("classes", "templates"))
    if len(set(classes)) < max(2, len(classes)):
        raise SettingsError(f"{where}: expected two different classes or more, got {classes}")
    if any("{}" not in template for template in templates):
        raise SettingsError(f"{where}: every template needs a {{}} for the class, got {templates}")
    items = []
    for position, record in enumerate(list_of(content, "items", where)):
        filename = field_of(record, "filename", f"{where}, item {position}")
        label = field_of(record, "class", f"{where}, item {position}")
        if label not in classes:
            raise SettingsError(f"{where}, item {position}: '{label}' is not one of its classes")
        items.append(Item(item=f"{position}", image=filename, positives=(label,)))
    return Subtask(NAME, name, ("zero_shot",), images, tuple(items), classes, templates)


BENCHMARK = Benchmark(
    name=NAME,
    label="Zero-shot",
    load=load,
    headline=lambda metric, name: metric == "top1",
    source="files of your own, one a set (see docs/benchmarks.md)",
)
