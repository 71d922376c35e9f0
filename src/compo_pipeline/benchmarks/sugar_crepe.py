"""SugarCrepe and SugarCrepe++, one official file a subtask.

SugarCrepe: {id: {filename, caption, negative_caption}}. SugarCrepe++: lists of {id, filename,
caption, caption2, negative_caption}; `caption2` says the same as `caption` in other words, the
other texts are SugarCrepe's. The hub has the same rows as Parquet, in folders named as its
configurations; the names of images in them, or images.
"""

from __future__ import annotations

from pathlib import Path

from compo_pipeline.benchmarks import hub
from compo_pipeline.benchmarks.files import Record, files_of, read_files
from compo_pipeline.benchmarks.items import COCO_PHOTOS, Benchmark, Item, Mean, Subtask

REPLACE = ("replace_obj", "replace_att", "replace_rel")
SWAP = ("swap_obj", "swap_att")
ADD = ("add_obj", "add_att")
_TEXTS_PP = ("caption", "caption2", "negative_caption")
_IMAGE_COLUMNS = ("image", "images", "filename")
# Of the hub's configurations, one of which is misspelt, and of the files.
_ON_HUB = {
    **{name.replace("_", ""): name for name in (*REPLACE, *SWAP)},
    "replaceobject": "replace_obj",
    "replaceattribute": "replace_att",
    "replacerelation": "replace_rel",
    "swapobject": "swap_obj",
    "swapatribute": "swap_att",
    "swapattribute": "swap_att",
}


def load(root: Path, images: Path) -> list[Subtask]:
    """Load SugarCrepe: a subtask for each JSON file."""
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
    """Load SugarCrepe++: a subtask for each file."""
    protocols = ("image_to_text", "text_only")
    return [
        Subtask("sugar_crepe_pp", name, protocols, rows.images, tuple(map(_item_pp, rows.records)))
        for name, rows in _rows_pp(root, images).items()
    ]


def _rows_pp(root: Path, images: Path) -> dict[str, hub.Rows]:
    """Records of each SugarCrepe++ subtask, from official files or else from the hub's Parquet."""
    if not files_of(root, "*.json") and (found := hub.files_by_name(root, _ON_HUB)):
        texts = hub.columns_of_same_names(_TEXTS_PP)
        return {
            name: hub.read_split(root, files, images, {"filename": _IMAGE_COLUMNS}, texts)
            for name, files in found.items()
        }
    return {
        file.name: hub.Rows(file.records(), images, inside=False)
        for file in read_files(root, "*.json")
    }


def _item_pp(record: Record) -> Item:
    """Item of a SugarCrepe++ record: two captions with the same meaning, and a foil."""
    caption, same, foil = map(record.text, _TEXTS_PP)
    name = f"{record.get('id', record.name)}"
    return Item(name, record.text("filename"), (caption, same), (foil,))


# CLIC Tables 1, 8 and 9: the averages are means of the subtasks, not of the groups.
_GROUPS = {"replace": Mean(REPLACE), "swap": Mean(SWAP)}
_AVERAGES = {
    "add": Mean(ADD),
    **_GROUPS,
    "average": Mean((*ADD, *REPLACE, *SWAP)),
    # FSC-CLIP's average (vl-compo): of the three groups, each over its items.
    "by_group": Mean(tuple(Mean(group, by_items=True) for group in (REPLACE, SWAP, ADD))),
    # mteb's and UniBench's.
    "by_item": Mean((*ADD, *REPLACE, *SWAP), by_items=True),
}
_AVERAGES_PP = {**_GROUPS, "average": Mean((*REPLACE, *SWAP))}

SUGAR_CREPE = Benchmark(
    name="sugar_crepe",
    role="composition",
    label="SugarCrepe",
    load=load,
    headline=lambda metric, name: name in ("add", "replace", "swap", "average"),
    averages={"accuracy": _AVERAGES},
    source="github.com/RAIVNLab/sugar-crepe: data/*.json; images: COCO val2017",
    download=f"1 GB; annotations MIT; images: {COCO_PHOTOS}",
)
SUGAR_CREPE_PP = Benchmark(
    name="sugar_crepe_pp",
    role="composition",
    label="SugarCrepe++",
    load=load_pp,
    headline=lambda metric, name: name == "average",
    averages=dict.fromkeys(("itt", "tot"), _AVERAGES_PP),
    source="github.com/Sri-Harsha/scpp: its files as <subtask>.json, or the Parquet of "
    "huggingface.co/datasets/Aman-J/SugarCrepe_pp; images: COCO val2017",
    files=hub.WITH_PARQUET,
    download=f"1 GB; annotations CC BY 4.0; images: {COCO_PHOTOS}",
)
