"""SugarCrepe's official files: {id: {filename, caption, negative_caption}}, one file a subtask."""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    field_of,
    read_folder,
)

NAME = "sugar_crepe"
REPLACE = ("replace_obj", "replace_att", "replace_rel")
SWAP = ("swap_obj", "swap_att")
ADD = ("add_obj", "add_att")


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every subtask in the folder."""
    subtasks = []
    for name, records in read_folder(root).items():
        items = []
        for key, record in records.items():
            where = f"{root / name}.json, item {key}"
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


# CLIC Tables 1, 8 and 9: the average is the mean of the seven subtasks, not of the groups.
_AVERAGES = {
    "add": Mean(ADD),
    "replace": Mean(REPLACE),
    "swap": Mean(SWAP),
    "average": Mean((*ADD, *REPLACE, *SWAP)),
    # FSC-CLIP's average (vl-compo): of the three groups, each over its items.
    "by_group": Mean(tuple(Mean(group, by_items=True) for group in (REPLACE, SWAP, ADD))),
    # mteb's and UniBench's.
    "by_item": Mean((*ADD, *REPLACE, *SWAP), by_items=True),
}

BENCHMARK = Benchmark(
    name=NAME,
    label="SugarCrepe",
    load=load,
    headline=lambda metric, name: name in ("add", "replace", "swap", "average"),
    averages={"accuracy": _AVERAGES},
    source="github.com/RAIVNLab/sugar-crepe: data/*.json; images: COCO val2017",
)
