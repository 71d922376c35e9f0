"""ARO: attribution, relations and word order.

`visual_genome_relation.json` and `visual_genome_attribution.json` are lists of {image_path,
bbox_x, bbox_y, bbox_w, bbox_h, true_caption, false_caption}, the first with `relation_name`, the
second with two `attributes`; the image is cropped to the box. Symmetric relations are left out, as
in the authors' notebook, and pairs of attributes with fewer than 25 items; the scores are means
over relations and over pairs.

`coco_order.json` and `flickr30k_order.json` are lists of {image, correct_caption, hard_text_1, ...
hard_text_4}, or of the authors' test cases {image, caption_options} with the right one first.
mteb's Parquet on the hub has the first form, with the images inside. The shuffles are read, not
made: they differ between versions of the tagger. A tie is right, as in the official code, whatever
`benchmarks.ties` says; a metric of its own counts ties as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks import hub
from compo_pipeline.benchmarks.files import Record, files_of, read_files, subtasks_of
from compo_pipeline.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
)
from compo_pipeline.core.settings import SettingsError

NAME = "aro"
RELATION, ATTRIBUTION = "vg_relation", "vg_attribution"
ORDERS = ("coco_order", "flickr30k_order")
_FILES = {
    "visual_genome_relation": RELATION,
    "visual_genome_attribution": ATTRIBUTION,
    **{order: order for order in ORDERS},
}
_BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")
_ORDER = ("correct_caption", "hard_text_1", "hard_text_2", "hard_text_3", "hard_text_4")
_IMAGE_COLUMNS = ("images", "image")
# The folders of mteb's data sets, and our own names.
_ON_HUB = {
    "cocoorder": ORDERS[0],
    "arococoorder": ORDERS[0],
    "flickr30korder": ORDERS[1],
    "flickrorder": ORDERS[1],
    "aroflickrorder": ORDERS[1],
}
_LEAST_ITEMS = 25
_DROPPED = {
    RELATION: "symmetric relations",
    ATTRIBUTION: f"pairs of attributes with fewer than {_LEAST_ITEMS} items",
}
# "Replicate ARO! VG-Relation, VG-Attribution.ipynb", with github.com/mertyg's code.
_SYMMETRIC = """
adjusting, attached to, between, bigger than, biting, boarding, brushing, chewing, cleaning,
climbing, close to, coming from, coming out of, contain, crossing, dragging, draped over,
drinking, drinking from, driving, driving down, driving on, eating from, eating in, enclosing,
exiting, facing, filled with, floating in, floating on, flying, flying above, flying in,
flying over, flying through, full of, going down, going into, going through, grazing in,
growing in, growing on, guiding, hanging from, hanging in, hanging off, hanging over,
higher than, holding onto, hugging, in between, jumping off, jumping on, jumping over, kept in,
larger than, leading, leaning over, leaving, licking, longer than, looking in, looking into,
looking out, looking over, looking through, lying next to, lying on top of, making, mixed with,
mounted on, moving, on the back of, on the edge of, on the front of, on the other side of,
opening, painted on, parked at, parked beside, parked by, parked in, parked in front of,
parked near, parked next to, perched on, petting, piled on, playing, playing in, playing on,
playing with, pouring, reaching for, reading, reflected on, riding on, running in, running on,
running through, seen through, sitting behind, sitting beside, sitting by, sitting in front of,
sitting near, sitting next to, sitting under, skiing down, skiing on, sleeping in, sleeping on,
smiling at, sniffing, splashing, sprinkled on, stacked on, standing against, standing around,
standing behind, standing beside, standing in front of, standing near, standing next to,
staring at, stuck in, surrounding, swimming in, swinging, talking to, topped with, touching,
traveling down, traveling on, tying, typing on, underneath, wading in, waiting for,
walking across, walking by, walking down, walking next to, walking through, working in,
working on, worn on, wrapped around, wrapped in, by, of, near, next to, with, beside,
on the side of, around
"""
# The official code takes the first of equals, the right one; of the authors' shuffles 18% change
# nothing, so that with ties as wrong no model would be right in more than 82%.
_OF_ORDERS: Mapping[str, Any] = {
    "protocols": ("image_to_text", "strict_image_to_text"),
    "ties_right": True,
    "ties_official": True,
}
_LEFT_OUT = {" ".join(relation.split()) for relation in _SYMMETRIC.split(",")}


def load(root: Path, images: Path) -> list[Subtask]:
    """Load ARO: a subtask for each relation, each attribute pair, and each kind of word order."""
    found: list[Subtask] = []
    for name, rows in _rows(root, images).items():
        items = [_parse_item(name, record) for record in rows.records]
        every = subtasks_of(NAME, "image_to_text", rows.images, items)
        counted = [task for task in every if _is_averaged(task)]
        if name in ORDERS:
            counted = [replace(task, **_OF_ORDERS) for task in counted]
        if not counted:
            where = rows.records[0].where.rpartition(", ")[0]
            raise SettingsError(f"{where}: all items are left out: {_DROPPED[name]}")
        if dropped := len(items) - sum(len(task.items) for task in counted):
            counted[0] = replace(counted[0], dropped={_DROPPED[name]: dropped})
        found += counted
    return found


def _rows(root: Path, images: Path) -> dict[str, hub.Rows]:
    """Records of ARO's official files, and of Parquet files from the Hugging Face hub, by name."""
    on_hub = hub.files_by_name(root, _ON_HUB)
    patterns = [f"{name}.json" for name in _FILES]
    found: dict[str, hub.Rows] = {}
    if files_of(root, *patterns) or not on_hub:
        for file in read_files(root, *patterns):
            found[_FILES[file.name]] = hub.Rows(file.records(), images, inside=False)
    for name, files in on_hub.items():
        if name in found:
            raise SettingsError(f"{root}/{name}.json and {files[0]} are both {name}: remove one")
        texts = hub.columns_of_same_names(_ORDER)
        found[name] = hub.read_split(root, files, images, {"image": _IMAGE_COLUMNS}, texts)
    return found


def _parse_item(name: str, record: Record) -> tuple[str, Item]:
    """Subtask name and benchmark item of an ARO record."""
    if name in ORDERS:
        image = record.text("image")
        if record.get("caption_options") is not None:
            texts = record.texts("caption_options", least=2)
        else:
            texts = tuple(map(record.text, _ORDER))
    else:
        image = record.crop(record.text("image_path"), _BOX)
        texts = tuple(map(record.text, ("true_caption", "false_caption")))
        relation = name == RELATION
        part = record.text("relation_name") if relation else "_".join(record.texts("attributes"))
        name = f"{name}/{part}"
    return name, Item(record.name, image, texts[:1], texts[1:])


def _is_averaged(task: Subtask) -> bool:
    """Whether an ARO subtask is part of the averages.

    Symmetric relations, for example, are not.

    Nor are pairs of attributes with too few items.
    """
    name, _, part = task.name.partition("/")
    if name == ATTRIBUTION:
        return len(task.items) >= _LEAST_ITEMS
    return part not in _LEFT_OUT


_AVERAGES = {
    "aro2": Mean((RELATION, ATTRIBUTION)),
    "aro4": Mean((RELATION, ATTRIBUTION, *ORDERS)),
}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="ARO",
    load=load,
    headline=lambda metric, name: (
        metric == "accuracy" and (name in _FILES.values() or name in _AVERAGES)
    ),
    averages={"accuracy": _AVERAGES},
    source="github.com/mertyg/vision-language-models-are-bows: visual_genome_relation.json, "
    "visual_genome_attribution.json, and word orders as coco_order.json, flickr30k_order.json or, "
    "as folders of these names, the Parquet of huggingface.co/datasets/gowitheflow/ARO-COCO-order "
    "and ARO-Flickr-Order; images: those of Visual Genome, COCO's val2014 and test2014, "
    "flickr30k-images",
    files=hub.WITH_PARQUET,
    download="15 GB of Visual Genome, CC BY 4.0; 6 GB of COCO and 4 GB of Flickr30k, each photo by "
    "its own licence; annotations MIT",
)
