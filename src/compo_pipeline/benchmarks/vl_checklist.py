"""VL-CheckList: `corpus/v1/<aspect>/.../<category>/<data set>[_<part>].yaml` name items and images.

Each is {ANNO_PATH, IMG_ROOT}: a JSON file below the same folder, a list of [image, {POS: texts,
NEG: texts}], and a folder below that of the images. The first positive is compared with the first
negative, as in the official code.

Averages follow the official `corpus.json`: a category is the mean of its data sets, a data set of
its files, an aspect (object, attribute, relation) of its categories.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from compo_pipeline.benchmarks.files import Record, read_file
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.remote import read_bytes
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import path_below, shown

NAME = "vl_checklist"
CATEGORIES = {
    "object": ("large", "medium", "small", "center", "mid", "margin"),
    "attribute": ("color", "material", "action_a", "size", "state"),
    "relation": ("action_r", "spatial"),
}
"""The official categories by aspect; both of `action` have the aspect's first letter."""

_INDEX = Path("corpus", "v1")
_BRACKETS = 100


def load(root: Path, images: Path) -> list[Subtask]:
    """Load VL-CheckList: a subtask `<category>/<data set>/<file>` for each index file."""
    files = sorted((root / _INDEX).rglob("*.yaml"))
    if not files:
        raise SettingsError(f"there is no *.yaml in {root / _INDEX}")
    subtasks = []
    for file in files:
        annotations, folder = _read_index(root, file)
        items = tuple(_parse_item(record, folder) for record in read_file(annotations).records())
        name = f"{_category(root, file)}/{file.stem.partition('_')[0]}/{file.stem}"
        subtasks.append(Subtask(NAME, name, ("image_to_text",), images, items))
    return subtasks


def _category(root: Path, file: Path) -> str:
    """Official category of a VL-CheckList index file, from its folders."""
    aspect, folder = file.relative_to(root / _INDEX).parts[0].lower(), file.parent.name.lower()
    for category in (folder, f"{folder}_{aspect[0]}"):
        if category in CATEGORIES.get(aspect, ()):
            return category
    expected = "; ".join(f"{aspect}: {', '.join(names)}" for aspect, names in CATEGORIES.items())
    raise SettingsError(f"{file} is in no folder of an official category ({expected})")


def _read_index(root: Path, file: Path) -> tuple[Path, str]:
    """Path of the annotation file, and name of the image folder, that an index file names."""
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


def _parse_item(record: Record, folder: str) -> Item:
    """Item of a VL-CheckList record: an image, its first positive and first negative text."""
    content = record.content
    if not isinstance(content, list) or len(content) != 2:
        raise SettingsError(f"{record.where}: expected [image, {{POS, NEG}}], got {shown(content)}")
    image = record.with_field("image", content[0]).text("image")
    texts = record._replace(content=content[1])
    right, wrong = (texts.texts(key)[:1] for key in ("POS", "NEG"))
    return Item(record.name, f"{folder.rstrip('/')}/{image}", right, wrong)


_ASPECTS = {aspect: Mean(categories) for aspect, categories in CATEGORIES.items()}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="VL-CheckList",
    load=load,
    headline=lambda metric, name: name == "average",
    averages={"accuracy": {**_ASPECTS, "average": Mean(tuple(_ASPECTS.values()))}},
    source="github.com/om-ai-lab/VL-CheckList: its folders corpus and data; images: the folders "
    "hake, swig and vg",
    files=("corpus/**/*",),
    official_items=1000,
)
