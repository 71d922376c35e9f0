"""VL-CheckList: `corpus/v1/<aspect>/<type>/<data set>.yaml` name the items and the images.

Each is {ANNO_PATH, IMG_ROOT}: a JSON file below the same folder, a list of [image, {POS: texts,
NEG: texts}], and a folder below that of the images. The first positive is compared with the first
negative, as in the official code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import (
    Benchmark,
    Item,
    Mean,
    Subtask,
    field_of,
    rows_of,
    texts_of,
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
        items = tuple(
            _item(record, f"{place}", folder, where)
            for place, (where, record) in enumerate(rows_of(annotations))
        )
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
    names = [field_of(content, key, f"{file}") for key in ("ANNO_PATH", "IMG_ROOT")]
    try:
        return path_below(root, names[0]), names[1]
    except ValueError as error:
        raise SettingsError(f"{file}: ANNO_PATH: {error}") from error


def _item(record: Any, place: str, folder: str, where: str) -> Item:
    if not isinstance(record, list) or len(record) != 2:
        raise SettingsError(f"{where}: expected [image, {{POS, NEG}}], got {shown(record)}")
    image, texts = record
    image = field_of({"image": image}, "image", where)
    right, wrong = (texts_of(texts, key, where)[:1] for key in ("POS", "NEG"))
    return Item(place, f"{folder.rstrip('/')}/{image}", right, wrong)


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
