"""VALSE: {id: {image_file, caption, foil, mturk: {caption}}}, one file a linguistic phenomenon.

Items of which fewer than two of three annotators chose the caption are left out, as in the
official code. Images are below the folders of the data sets that they come from.
"""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.benchmarks.files import read_files
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

NAME = "valse"
_VISUAL7W, _SWIG = "visual7w/images", "actions/images_512"
# Each file's folder of images, as the official code has them below its folder `data`.
_FOLDERS = {
    "existence": _VISUAL7W,
    "plurals": "plurals/test_images",
    "counting-hard": _VISUAL7W,
    "counting-small-quant": _VISUAL7W,
    "counting-adversarial": _VISUAL7W,
    "relations": "relations/test_images",
    "action-replacement": _SWIG,
    "actant-swap": _SWIG,
    "coreference-standard": "coref/release_too_many_is_this_in_color/images",
    "coreference-hard": "coref/release_v18/test_images",
    "foil-it": "COCO/val2014",
}
_LEAST_VOTES = 2


def load(root: Path, images: Path) -> list[Subtask]:
    """Load VALSE: a subtask for each linguistic phenomenon whose file is there."""
    subtasks = []
    for file in read_files(root, *(f"{name}.json" for name in _FOLDERS), kind=dict):
        items = []
        for record in file.records():
            image, caption, foil = map(record.text, ("image_file", "caption", "foil"))
            votes = record.get("mturk")
            if not isinstance(votes, dict) or not isinstance(votes.get("caption"), int):
                raise SettingsError(
                    f"{record.where}: expected votes mturk.caption, got {shown(votes)}"
                )
            if votes["caption"] >= _LEAST_VOTES:
                path = f"{_FOLDERS[file.name]}/{image}"
                items.append(Item(record.name, path, (caption,), (foil,)))
        few = len(file.content) - len(items)
        dropped = {f"mturk.caption below {_LEAST_VOTES}": few} if few else {}
        protocols = ("image_to_text",)
        subtasks.append(Subtask(NAME, file.name, protocols, images, tuple(items), dropped=dropped))
    return subtasks


_AVERAGES: dict[str, Mean] = {
    "counting": Mean(("counting-hard", "counting-small-quant", "counting-adversarial")),
    "actions": Mean(("action-replacement", "actant-swap")),
    "coreference": Mean(("coreference-standard", "coreference-hard")),
}
_PHENOMENA: tuple[str | Mean, ...] = (
    "existence",
    "plurals",
    "relations",
    *_AVERAGES.values(),
    "foil-it",
)

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="VALSE",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {**_AVERAGES, "average": Mean(_PHENOMENA)}},
    source="github.com/Heidelberg-NLP/VALSE: data/*.json; images: below the folders that its "
    "config.py names (visual7w/images, actions/images_512, ...), COCO/val2014 for foil-it",
    download="annotations MIT",
)
