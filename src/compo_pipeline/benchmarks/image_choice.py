"""Benchmarks of a text and several images: SVO-Probes, ImageCoDe, SPEC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compo_pipeline.benchmarks.files import read_file, read_files, subtasks_of
from compo_pipeline.benchmarks.items import Benchmark, Item, Mean, Subtask
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import path_below, shown

_WORDS = ("subj", "verb", "obj")
_SET_SIZE = 10
_SPEC = "absolute_size relative_size absolute_spatial relative_spatial existence count"


def _load_svo_probes(root: Path, images: Path) -> list[Subtask]:
    """Load SVO-Probes from its CSV file: a subtask for each word that differs.

    Columns: sentence, pos_image_id, neg_image_id and the flags subj_neg, verb_neg, obj_neg.

    Rows in which not exactly one of the three words differs are left out, as in the official code.
    """
    (file,) = read_files(root, "svo_probes.csv")
    found = []
    for row in file.records():
        flags = [row.text(f"{word}_neg").lower() for word in _WORDS]
        if not set(flags) <= {"true", "false"}:
            raise SettingsError(
                f"{row.where}: the flags are {shown(flags)}, expected true or false"
            )
        if flags.count("true") == 1:
            text, right, wrong = map(row.text, ("sentence", "pos_image_id", "neg_image_id"))
            item = Item(row.name, f"{right}.jpg", (text,), (), (f"{wrong}.jpg",))
            found.append((_WORDS[flags.index("true")], item))
    few = len(file.content) - len(found)
    dropped = {"not exactly one of subject, verb and object differs": few}
    return [
        replace(subtask, dropped={} if place else dropped)
        for place, subtask in enumerate(subtasks_of("svo_probes", "text_to_image", images, found))
    ]


def _load_imagecode(root: Path, images: Path) -> list[Subtask]:
    """Load ImageCoDe, whose texts describe one of ten images.

    Videos and photos are subtasks.

    The file is {set: {place of the right image: text}}; a set is a folder of ten `img<number>.jpg`.
    """
    found = []
    (file,) = read_files(root, "valid_data.json", kind=dict)
    for image_set in file.records():
        name = image_set.name
        names = _images_of_set(images, name)
        if not isinstance(image_set.content, dict):
            raise SettingsError(
                f"{image_set.where}: expected texts, got {shown(image_set.content)}"
            )
        for key in image_set.content:
            own = image_set._replace(where=f"{image_set.where}/{key}")
            place = own.with_field("place", key).choice_index("place", _SET_SIZE)
            text = own.text(key).strip()
            others = (*names[:place], *names[place + 1 :])
            kind = "static" if "open-images" in name else "video"
            found.append((kind, Item(f"{name}/{key}", names[place], (text,), (), others)))
    return subtasks_of("imagecode", "text_to_image", images, found)


def _images_of_set(images: Path, name: str) -> list[str]:
    """Names of the ten images of an ImageCoDe set, in the order of their numbers.

    The first numbers where there are not ten of them.
    """
    numbers: list[int] = []
    try:
        for image in path_below(images, name, follow_symlinks=True).glob("img*.jpg"):
            numbers += [int(image.stem[3:])] if image.stem[3:].isdecimal() else []
    except (OSError, ValueError):  # no folder can have this name: decoding says so
        numbers = []
    complete = len(numbers) == _SET_SIZE
    return [f"{name}/img{k}.jpg" for k in (sorted(numbers) if complete else range(_SET_SIZE))]


def _load_spec(root: Path, images: Path) -> list[Subtask]:
    """Load SPEC: subtasks for choosing a text for an image, and an image for a text.

    Files are lists of {query, keys, label} in `<subset>/{image2text,text2image}.json`.
    """
    return [
        *subtasks_of("spec", "image_to_text", images, _spec_items(root, "image2text")),
        *subtasks_of("spec", "text_to_image", images, _spec_items(root, "text2image")),
    ]


def _spec_items(root: Path, direction: str) -> Iterator[tuple[str, Item]]:
    """Yield subtask name and item of each SPEC record, for a choice of texts or of images.

    From image to text, or back.
    """
    for file in sorted(root.glob(f"*/{direction}.json")):
        subset = file.parent.name
        for record in read_file(file).records():
            keys, query = record.texts("keys"), record.text("query")
            label = record.choice_index("label", len(keys))
            right, wrong = keys[label], (*keys[:label], *keys[label + 1 :])
            if direction == "image2text":
                item = Item(record.name, f"{subset}/{query}", (right,), wrong)
            else:
                others = tuple(f"{subset}/{image}" for image in wrong)
                item = Item(record.name, f"{subset}/{right}", (query,), (), others)
            yield f"{direction}_{subset}", item


SVO_PROBES = Benchmark(
    name="svo_probes",
    role="composition",
    label="SVO-Probes",
    load=_load_svo_probes,
    headline=lambda metric, name: name == "average",
    averages={"t2i": {"average": Mean(_WORDS)}},
    source="github.com/google-deepmind/svo_probes: svo_probes.csv; images: <image id>.jpg, "
    "from the addresses in it",
    download="annotations Apache-2.0",
)
IMAGECODE = Benchmark(
    name="imagecode",
    role="composition",
    label="ImageCoDe",
    load=_load_imagecode,
    headline=lambda metric, name: name == "average",
    averages={"t2i": {"average": Mean(("video", "static"), by_items=True)}},
    source="github.com/McGill-NLP/imagecode: data/valid_data.json; images: <set>/img<n>.jpg",
    download="annotations MIT",
)
SPEC = Benchmark(
    name="spec",
    role="composition",
    label="SPEC",
    load=_load_spec,
    headline=lambda metric, name: name in ("image2text", "text2image"),
    averages={
        "accuracy": {"image2text": Mean(tuple(f"image2text_{name}" for name in _SPEC.split()))},
        "t2i": {"text2image": Mean(tuple(f"text2image_{name}" for name in _SPEC.split()))},
    },
    source="github.com/wjpoom/SPEC: <subset>/image2text.json and text2image.json; images: "
    "beside them, so the same folder",
    files=("*/*.json",),
)
