"""SugarCrepe's official files: {id: {filename, caption, negative_caption}}, one file a subtask."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.evaluation.benchmarks.items import Item, Subtask, field_of, read_folder

NAME = "sugar_crepe"


def load(root: Path, images: Path) -> list[Subtask]:
    """Every subtask that lies under `root`."""
    subtasks = []
    for name, records in read_folder(root, NAME).items():
        items = []
        for key, record in records.items():
            where = f"{root / NAME / name}.json, item {key}"
            items.append(
                Item(
                    item=key,
                    image=field_of(record, "filename", where),
                    positives=(field_of(record, "caption", where),),
                    negatives=(field_of(record, "negative_caption", where),),
                )
            )
        subtasks.append(Subtask(NAME, name, ("image_to_text",), images, tuple(items)))
    return subtasks
