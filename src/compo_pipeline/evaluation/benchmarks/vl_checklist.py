"""VL-CheckList: `corpus/v1/<aspect>/<type>/<data set>.yaml` name the items and the images.

Each is {ANNO_PATH, IMG_ROOT}: a JSON file below the same folder, a list of [image, {POS: texts,
NEG: texts}], and a folder below that of the images. The first positive is compared with the first
negative, as in the official code.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Record,
    Subtask,
    read_file,
)
from compo_pipeline.remote import read_bytes
from compo_pipeline.untrusted import path_below, shown

NAME = "vl_checklist"
ASPECTS = ("object", "attribute", "relation")
_INDEX = Path("corpus", "v1")
_BRACKETS = 100


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every file that the index names; its subtask is a part of its aspect."""
    files = sorted((root / _INDEX).rglob("*.yaml"))
    if not files:
        raise SettingsError(f"there is no *.yaml in {root / _INDEX}")
    subtasks = []
    for file in files:
        aspect, *parts = file.relative_to(root / _INDEX).with_suffix("").parts
        if aspect.lower() not in ASPECTS or not parts:
            raise SettingsError(f"{file} is in none of the folders {', '.join(ASPECTS)}")
        annotations, folder = _index(root, file)
        items = tuple(_item(record, folder) for record in read_file(annotations).records())
        name = f"{aspect.lower()}/{'_'.join(parts)}"
        subtasks.append(Subtask(NAME, name, ("image_to_text",), images, items))
    return subtasks


def _index(root: Path, file: Path) -> tuple[Path, str]:
    """The annotation file and the folder of images that a file of the index names."""
    try:
        text = read_bytes(file).decode("utf-8")
        # PyYAML's time grows with the square of the brackets that are open.
        if text.count("[") + text.count("{") > _BRACKETS:
            raise ValueError(f"more than {_BRACKETS} brackets")
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from error
    annotations, folder = map(Record(file.stem, f"{file}", content).text, ("ANNO_PATH", "IMG_ROOT"))
    try:
        return path_below(root, annotations), folder
    except ValueError as error:
        raise SettingsError(f"{file}: ANNO_PATH: {error}") from error


def _item(record: Record, folder: str) -> Item:
    content = record.content
    if not isinstance(content, list) or len(content) != 2:
        raise SettingsError(f"{record.where}: expected [image, {{POS, NEG}}], got {shown(content)}")
    image = record.part("image", content[0]).text("image")
    texts = record._replace(content=content[1])
    right, wrong = (texts.texts(key)[:1] for key in ("POS", "NEG"))
    return Item(record.name, f"{folder.rstrip('/')}/{image}", right, wrong)


BENCHMARK = Benchmark(
    name=NAME,
    label="VL-CheckList",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {"average": Mean(ASPECTS)}},
    source="github.com/om-ai-lab/VL-CheckList: its folders corpus and data; images: the folders "
    "hake, swig and vg",
    files=("corpus/**/*",),
)
