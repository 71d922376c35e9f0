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

from compo_pipeline.benchmarks.files import Record, read_files
from compo_pipeline.benchmarks.items import COCO_PHOTOS, Benchmark, Item, Mean, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

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
    """Load What'sUp: a subtask for each file, and joint subtasks of pairs and sets of images.

    Only the files that are there are read.
    """
    subtasks = []
    for file in read_files(root, *(f"{name}.json" for name in _FILES)):
        read = _controlled_item if file.name.startswith("controlled") else _photo_item
        name, items = _FILES[file.name], [read(record, file.name) for record in file.records()]
        subtasks.append(Subtask(NAME, name, ("image_to_text",), images, tuple(items)))
        if pairs := _PAIRS.get(file.name):
            for kind, places in {"pairs": pairs, "sets": (sum(pairs, ()),)}.items():
                if joint := tuple(_join_items(items, places, file.where)):
                    subtasks.append(Subtask(NAME, f"{name}_{kind}", ("joint",), images, joint))
    return subtasks


def _join_items(
    items: Iterable[Item], kinds: Iterable[tuple[str, ...]], where: str
) -> Iterator[Item]:
    """Yield joint items, each made of the items that show the same two objects in all places."""
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


def _controlled_item(record: Record, _: str) -> Item:
    """Item of a controlled photograph: an image, one right and several wrong captions."""
    path = PurePosixPath(record.text("image_path"))
    right, *wrong = record.texts("caption_options", least=2)
    return Item(record.name, "/".join(path.parts[-2:]), (right,), tuple(wrong))


def _photo_item(record: Record, file: str) -> Item:
    """Item of a COCO or GQA photo: an image, a right and a wrong caption."""
    content = record.content
    if not isinstance(content, list) or len(content) != 3:
        raise SettingsError(
            f"{record.where}: expected [image id, right, wrong], got {shown(content)}"
        )
    image, right, wrong = (record.with_field("text", f"{part}").text("text") for part in content)
    path = f"val2017/{image:0>12}" if file.startswith("coco") else f"vg_images/{image}"
    return Item(record.name, f"{path}.jpg", (right,), (wrong,))


BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="What'sUp",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {"average": Mean(tuple(_FILES.values()))}},
    source="github.com/amitakamath/whatsup_vlms: controlled_*_dataset.json, *_qa_*_obj.json; "
    "images: the folders controlled_images, controlled_clevr, val2017 and vg_images",
    ties_right=True,
    download=f"annotations MIT; images of COCO: {COCO_PHOTOS}",
)
