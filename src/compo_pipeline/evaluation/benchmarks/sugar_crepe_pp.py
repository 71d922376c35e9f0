"""SugarCrepe++'s official files: lists of {id, filename, caption, caption2, negative_caption}.

`caption2` says the same as `caption` in other words; `negative_caption` is SugarCrepe's.
"""

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
from compo_pipeline.evaluation.benchmarks.sugar_crepe import REPLACE, SWAP

NAME = "sugar_crepe_pp"


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every subtask in the folder."""
    subtasks = []
    for name, records in read_folder(root, list).items():
        items = []
        for position, record in enumerate(records):
            where = f"{root / name}.json, item {position}"
            items.append(
                Item(
                    image=field_of(record, "filename", where),
                    item=f"{record.get('id', position)}",
                    positives=(
                        field_of(record, "caption", where),
                        field_of(record, "caption2", where),
                    ),
                    negatives=(field_of(record, "negative_caption", where),),
                )
            )
        protocols = ("image_to_text", "text_only")
        subtasks.append(Subtask(NAME, name, protocols, images, tuple(items)))
    return subtasks


# CLIC Tables 1, 8 and 9: the average is the mean of the five subtasks, not of the groups.
_AVERAGES = {
    "replace": Mean(REPLACE),
    "swap": Mean(SWAP),
    "average": Mean((*REPLACE, *SWAP)),
}

BENCHMARK = Benchmark(
    name=NAME,
    label="SugarCrepe++",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"itt": _AVERAGES, "tot": _AVERAGES},
    source="SugarCrepe++'s files as <subtask>.json; images: COCO val2017",
)
