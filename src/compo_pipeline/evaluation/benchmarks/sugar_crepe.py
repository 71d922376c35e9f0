"""SugarCrepe and SugarCrepe++, one official file a subtask.

SugarCrepe: {id: {filename, caption, negative_caption}}. SugarCrepe++: lists of {id, filename,
caption, caption2, negative_caption}; `caption2` says the same as `caption` in other words, the
other texts are SugarCrepe's.
"""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    read_files,
)

REPLACE = ("replace_obj", "replace_att", "replace_rel")
SWAP = ("swap_obj", "swap_att")
ADD = ("add_obj", "add_att")


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every subtask of SugarCrepe in the folder."""
    subtasks = []
    for file in read_files(root, "*.json", kind=dict):
        items = tuple(
            Item(
                item=record.name,
                image=record.text("filename"),
                positives=(record.text("caption"),),
                negatives=(record.text("negative_caption"),),
            )
            for record in file.records()
        )
        subtasks.append(Subtask("sugar_crepe", file.name, ("image_to_text",), images, items))
    return subtasks


def load_pp(root: Path, images: Path) -> list[Subtask]:
    """Read every subtask of SugarCrepe++ in the folder."""
    subtasks = []
    for file in read_files(root, "*.json"):
        items = tuple(
            Item(
                item=f"{record.get('id', record.name)}",
                image=record.text("filename"),
                positives=(record.text("caption"), record.text("caption2")),
                negatives=(record.text("negative_caption"),),
            )
            for record in file.records()
        )
        protocols = ("image_to_text", "text_only")
        subtasks.append(Subtask("sugar_crepe_pp", file.name, protocols, images, items))
    return subtasks


# CLIC Tables 1, 8 and 9: the averages are means of the subtasks, not of the groups.
_GROUPS = {"replace": Mean(REPLACE), "swap": Mean(SWAP)}
_AVERAGES = {
    **_GROUPS,
    "add": Mean(ADD),
    "average": Mean((*ADD, *REPLACE, *SWAP)),
    # FSC-CLIP's average (vl-compo): of the three groups, each over its items.
    "by_group": Mean(tuple(Mean(group, by_items=True) for group in (REPLACE, SWAP, ADD))),
    # mteb's and UniBench's.
    "by_item": Mean((*ADD, *REPLACE, *SWAP), by_items=True),
}
_AVERAGES_PP = {**_GROUPS, "average": Mean((*REPLACE, *SWAP))}

BENCHMARKS = (
    Benchmark(
        name="sugar_crepe",
        label="SugarCrepe",
        load=load,
        headline=lambda metric, name: name in ("add", "replace", "swap", "average"),
        averages={"accuracy": _AVERAGES},
        source="github.com/RAIVNLab/sugar-crepe: data/*.json; images: COCO val2017",
    ),
    Benchmark(
        name="sugar_crepe_pp",
        label="SugarCrepe++",
        load=load_pp,
        headline=lambda metric, name: name == "average",
        averages=dict.fromkeys(("itt", "tot"), _AVERAGES_PP),
        source="SugarCrepe++'s files as <subtask>.json; images: COCO val2017",
    ),
)
