"""What'sUp: spatial relations. Controlled images A and B, and questions of COCO and GQA.

`controlled_images_dataset.json` (A) and `controlled_clevr_dataset.json` (B) are lists of
{image_path, caption_options}, the right caption first; of a path, the last folder and the name
count. `{coco,vg}_qa_{one,two}_obj.json` are lists of [image id, right caption, wrong caption].

A controlled image is named <object>_<place>_..._<object>.jpeg. The images of two objects in
opposite places (left and right, on and under, in-front and behind) are a pair, those in all four
places a set. Pairs and sets are subtasks of their own, in which an item is right where all its
images are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    field_of,
    read_folder,
    texts_of,
)
from compo_pipeline.untrusted import shown

NAME = "whatsup"
_SIDES = ("left", "right")
_PAIRS = {
    "controlled_images_dataset": (_SIDES, ("on", "under")),
    "controlled_clevr_dataset": (_SIDES, ("in-front", "behind")),
}
_FILES = {
    "controlled_images_dataset": "a",
    "controlled_clevr_dataset": "b",
    "coco_qa_one_obj": "coco_one",
    "coco_qa_two_obj": "coco_two",
    "vg_qa_one_obj": "gqa_one",
    "vg_qa_two_obj": "gqa_two",
}


def load(root: Path, images: Path) -> list[Subtask]:
    """Read the files that are there."""
    subtasks = []
    for name, records in read_folder(root, list, _FILES).items():
        items = []
        for place, record in enumerate(records):
            where = f"{root / name}.json, item {place}"
            image, texts = (
                _controlled(record, where)
                if name.startswith("controlled")
                else _question(record, name, where)
            )
            items.append(Item(f"{place}", image, texts[:1], texts[1:]))
        subtasks.append(Subtask(NAME, _FILES[name], ("image_to_text",), images, tuple(items)))
        if first_and_second := _PAIRS.get(name):
            every = {"pairs": first_and_second, "sets": (sum(first_and_second, ()),)}
            for kind, places in every.items():
                if joint := tuple(_joint(items, places, f"{root / name}.json")):
                    part = f"{_FILES[name]}_{kind}"
                    subtasks.append(Subtask(NAME, part, ("joint",), images, joint))
    return subtasks


def _joint(items: Iterable[Item], kinds: Iterable[tuple[str, ...]], where: str) -> Iterator[Item]:
    """For each two objects and each of the kinds, the items in all its places as one."""
    by_objects: dict[tuple[str, str], dict[str, Item]] = {}
    for item in items:
        words = PurePosixPath(item.image).stem.split("_")
        if len(words) > 2:
            by_objects.setdefault((words[0], words[-1]), {})[words[1]] = item
    for objects, found in by_objects.items():
        for places in kinds:
            own = [found[place] for place in places if place in found]
            if len(own) < len(places):
                continue
            if len({len(item.negatives) for item in own}) > 1:
                raise SettingsError(
                    f"{where}: expected equally many caption_options for all images of "
                    f"{' and '.join(objects)}"
                )
            yield Item(
                "_".join((*objects, *places)),
                own[0].image,
                tuple(text for item in own for text in item.positives),
                tuple(text for item in own for text in item.negatives),
                tuple(item.image for item in own[1:]),
            )


def _controlled(record: Any, where: str) -> tuple[str, tuple[str, ...]]:
    path = PurePosixPath(field_of(record, "image_path", where))
    return "/".join(path.parts[-2:]), texts_of(record, "caption_options", where, least=2)


def _question(record: Any, name: str, where: str) -> tuple[str, tuple[str, ...]]:
    if not isinstance(record, list) or len(record) != 3:
        raise SettingsError(f"{where}: expected [image id, right, wrong], got {shown(record)}")
    image, right, wrong = (field_of({"text": f"{part}"}, "text", where) for part in record)
    folder = f"val2017/{image:0>12}" if name.startswith("coco") else f"vg_images/{image}"
    return f"{folder}.jpg", (right, wrong)


BENCHMARK = Benchmark(
    name=NAME,
    label="What'sUp",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {"average": Mean(tuple(_FILES.values()))}},
    source="github.com/amitakamath/whatsup_vlms: controlled_*_dataset.json, *_qa_*_obj.json; "
    "images: the folders controlled_images, controlled_clevr, val2017 and vg_images",
    ties_right=True,
)
