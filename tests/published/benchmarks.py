"""Files of the papers' benchmarks about images made here, at least one benchmark a role.

Composition: SugarCrepe and SugarCrepe++. Retrieval: Flickr30k by Karpathy's file. Zero-shot
classification: a set in the layout of CLIP_benchmark.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.published.world import COLOURS, Row

SUBTASKS = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
"""Of SugarCrepe++. All of them ask for a colour here, so that few items decide."""


def write(root: Path, rows: Sequence[Row], images: Path) -> None:
    """The files of all suites below their root, and COCO's images, which have their own folder.

    Args:
        root: `benchmarks.root`.
        rows: images and captions of the items.
        images: of SugarCrepe and SugarCrepe++.
    """
    sugar_crepe(root, rows, images)
    flickr30k(root / "flickr30k", rows)
    webdataset(root / "zero_shot_sets" / "wds_cifar10", rows)


def sugar_crepe(root: Path, rows: Sequence[Row], images: Path) -> None:
    """The files of SugarCrepe and of SugarCrepe++; each subtask has an item of every image."""
    items = []
    for one, texts in rows:
        name = f"{one.number:012}.jpg"
        one.write(images / name)
        texts = {"caption": texts[0], "caption2": texts[1], "negative_caption": one.foils[0]}
        items.append({"id": one.number, "filename": name, **texts})
    for benchmark in ("sugar_crepe", "sugar_crepe_pp"):
        (root / benchmark).mkdir(parents=True)
    for subtask in (*SUBTASKS, "add_att", "add_obj"):
        content = {str(item["id"]): item for item in items}
        (root / "sugar_crepe" / f"{subtask}.json").write_text(json.dumps(content))
    for subtask in SUBTASKS:
        (root / "sugar_crepe_pp" / f"{subtask}.json").write_text(json.dumps(items))


def flickr30k(root: Path, rows: Sequence[Row]) -> None:
    """Karpathy's file, and the images in the benchmark's own folder."""
    listed = []
    for one, texts in rows:
        name = f"{one.number}.jpg"
        one.write(root / "images" / name)
        sentences = [{"raw": text} for text in texts]
        listed.append({"split": "test", "filename": name, "sentences": sentences})
    (root / "dataset_flickr30k.json").write_text(json.dumps({"images": listed}))


def webdataset(root: Path, rows: Sequence[Row]) -> None:
    """A set of images by their left colour, as CLIP_benchmark exports one."""
    (root / "test").mkdir(parents=True)
    names = list(COLOURS)
    (root / "classnames.txt").write_text("\n".join(names))
    template = "A {c} dog next to a {c} cat."
    (root / "zeroshot_classification_templates.txt").write_text(template)
    (root / "test" / "nshards.txt").write_text("1")
    with tarfile.open(root / "test" / "0.tar", "w") as tar:
        for one, _ in rows:
            colour = one.colours[0]
            image = io.BytesIO()
            one.image(colour, colour).save(image, "webp")
            _add(tar, f"s{one.number:07}.webp", image.getvalue())
            _add(tar, f"s{one.number:07}.cls", str(names.index(colour)).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
