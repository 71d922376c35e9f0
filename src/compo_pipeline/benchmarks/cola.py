"""Cola: captions of two images whose objects swap attributes, and objects to find among images.

`COLA_multiobjects_matching_benchmark.json` is a list of [address of an image, its caption, address
of another, its caption]; the image score is Cola's accuracy.

`COLA_singleobjects_benchmark_<set>.json` has `labels`, names of objects with attributes, and
`data`, a list of [image, its objects (not for PACO), whether each label is of the image, whether
the image is a hard one for each label]; both in a mapping or as a list of two. An item is a label:
the average precision of its images among its hard ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compo_pipeline.benchmarks.files import Record, read_content, read_file, tail_of
from compo_pipeline.benchmarks.items import ALL, Benchmark, Item, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

NAME = "cola"
_PAIRS = "COLA_multiobjects_matching_benchmark.json"
_SINGLE = "COLA_singleobjects_benchmark_"


def load(root: Path, images: Path) -> list[Subtask]:
    """Load Cola: the subtask of image pairs, and the subtasks of single objects.

    Only the files that are there are read.
    """
    single = sorted(root.glob(f"{_SINGLE}*.json"))
    subtasks = [_single_object_subtask(file, images) for file in single]
    if (root / _PAIRS).is_file():
        items = tuple(_pair_items(read_file(root / _PAIRS), images))
        subtasks.insert(0, Subtask(NAME, ALL, ("group",), images, items))
    if not subtasks:
        raise SettingsError(f"there is no {_PAIRS} or {_SINGLE}*.json in {root}")
    return subtasks


def _pair_items(file: Record, images: Path) -> Iterator[Item]:
    """Yield the items of Cola's multi-object part: two images with a caption each."""
    for record in file.records():
        texts = record.with_field("texts", record.content).texts("texts", least=4)
        if len(texts) != 4:
            raise SettingsError(f"{record.where}: expected 4 texts, got {shown(record.content)}")
        image, other = (tail_of(texts[place], images) for place in (0, 2))
        yield Item(record.name, image, (texts[1],), (texts[3],), (other,))


def _single_object_subtask(file: Path, images: Path) -> Subtask:
    """Subtask of a single-object file of Cola: for each label, its right and wrong images."""
    content = read_content(file)
    if isinstance(content, list) and len(content) == 2:
        content = {"labels": content[0], "data": content[1]}
    if not isinstance(content, dict):
        raise SettingsError(f"{file}: expected labels and data, got {shown(content)}")
    whole = Record(file.stem, f"{file}", content)
    labels = whole.texts("labels")
    right: list[list[str]] = [[] for _ in labels]
    wrong: list[list[str]] = [[] for _ in labels]
    for record in whole.list_records("data", "image"):
        values = record.content
        if not isinstance(values, list) or len(values) not in (3, 4):
            raise SettingsError(f"{record.where}: expected a list of 3 or 4, got {shown(values)}")
        image = tail_of(record.with_field("image", values[0]).text("image"), images)
        flags = [_parse_flags(part, len(labels), record.where) for part in values[-2:]]
        for place, (is_right, is_hard) in enumerate(zip(*flags, strict=True)):
            if is_hard:
                (right if is_right else wrong)[place].append(image)
    items = tuple(
        Item(f"{place}", own[0], (labels[place],), (), (*own[1:], *wrong[place]), len(own))
        for place, own in enumerate(right)
        if own
    )
    dropped = {"no right image among the hard ones": few} if (few := right.count([])) else {}
    name = f"single_{file.stem.removeprefix(_SINGLE).lower()}"
    return Subtask(NAME, name, ("average_precision",), images, items, dropped=dropped)


def _parse_flags(values: object, count: int, where: str) -> list[bool]:
    """Parse one 0 or 1 for each label, as booleans."""
    if not isinstance(values, list) or len(values) != count or any(v not in (0, 1) for v in values):
        raise SettingsError(f"{where}: expected 0 or 1 for each of {count} labels")
    return [bool(value) for value in values]


BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="Cola",
    load=load,
    headline=lambda metric, name: metric in ("image", "average_precision"),
    source="github.com/arijitray1993/COLA: data/COLA_multiobjects_matching_benchmark.json, "
    "data/COLA_singleobjects_benchmark_{GQA,CLEVR,PACO}.json; images: those they name",
    download="annotations MIT",
    parts=(ALL, "single_gqa", "single_clevr", "single_paco"),
)
