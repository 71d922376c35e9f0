"""Retrieval: over the images and captions of a dataset's own split, and over official files.

An image's captions in a dataset are the first sentences of its rows: COCO's five captions per
image, and the first sentence of a long caption. The official files are

- COCO's annotations: {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
- Karpathy's splits: {"images": [{"split", "filepath", "filename", "sentences": [{"raw"}]}]}
- DOCCI: lines of {"example_id", "split", "image_file", "description"}
- IIW: lines of {"image/key" or "image", "IIW" or "IIW-P5B"}, a person's description or a model's
- Urban-1k: a file a caption, `caption/<name>.txt`, beside `image/<name>.jpg`

A text protocol is a subtask: `karpathy` is the test split with raw captions, `clic` has CLIC's
normalised ones (of COCO those of val2017). Every caption of an image is a query, also beyond the
fifth. The long captions of DOCCI, IIW and Urban-1k are split into sentences, as C2LIP's tables have
it, which follow FLAIR (their splitter is not known), and whole, as Long-CLIP has those of Urban-1k
(github.com/beichenzbc/Long-CLIP, eval/retrieval/Urban1k.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from compo_pipeline.benchmarks.files import Record, files_of, read_file, read_files
from compo_pipeline.benchmarks.items import (
    ALL,
    COCO_PHOTOS,
    FILES,
    FLICKR_PHOTOS,
    Benchmark,
    Item,
    Subtask,
)
from compo_pipeline.benchmarks.settings import RetrievalSettings, TextProtocol
from compo_pipeline.core.records import Caption
from compo_pipeline.core.sentences import split
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.images.decoding import ACCEPTED, Limits

NAME = "retrieval"

_VAL = "captions_val2017"
_CLIC_MARKS = re.compile(r"[.!\"()*#:;~]")
_CLIC_WORDS = 30
_KARPATHY = "cs.stanford.edu/people/karpathy/deepimagesent"
_IIW_FILES = ("*.jsonl", "*/data.jsonl")
_URBAN1K_FILES = ("caption/*.txt",)


def clic_text(text: str) -> str:
    """A caption normalised as in CLIC's retrieval evaluation.

    That is the normalisation of BLIP's loaders.
    """
    words = _CLIC_MARKS.sub(" ", text.lower()).split()
    return " ".join(words[:_CLIC_WORDS])


TEXTS: dict[TextProtocol, Callable[[Caption], str]] = {
    "raw": lambda caption: caption.sentences[0],
    "clic": lambda caption: clic_text(caption.sentences[0]),
    "whole": lambda caption: caption.whole,
}


def load(
    captions: Iterable[Caption], root: Path, settings: RetrievalSettings, limits: Limits = ACCEPTED
) -> list[Subtask]:
    """Load retrieval over the dataset's own captions: a subtask for each text protocol.

    Raises:
        SettingsError: the split holds no captions.
    """
    rows: dict[str, list[Caption]] = {}
    splits = set()
    for caption in captions:
        splits.add(caption.split)
        if caption.split == settings.split and caption.sentences:
            rows.setdefault(caption.image_id, []).append(caption)
    if not rows:
        raise SettingsError(
            f"benchmarks.retrieval.split: no captions of the split '{settings.split}' "
            f"(splits with captions: {', '.join(sorted(splits)) or 'none'}); name one of them, "
            "or null to leave retrieval out"
        )
    found, source = [], settings.split or ""
    for name in (settings.text,) if isinstance(settings.text, str) else settings.text:
        items = tuple(
            Item(key, own[0].image, tuple(map(TEXTS[name], own))) for key, own in rows.items()
        )
        task = Subtask(NAME, name, ("retrieval",), root, items, limits=limits, source=source)
        found.append(task)
    return found


def _load_coco(root: Path, images: Path) -> list[Subtask]:
    """Load COCO retrieval: CLIC's subtask on val2017, and Karpathy's test split.

    Each if its file is there.
    """
    return [
        _retrieval_subtask("coco", "clic", images, _coco_items(file), clic_text)
        if file.name == _VAL
        else _retrieval_subtask("coco", "karpathy", images, _karpathy_items(file))
        for file in read_files(root, f"{_VAL}.json", "dataset_coco.json", kind=dict)
    ]


def _load_flickr30k(root: Path, images: Path) -> list[Subtask]:
    """Load Flickr30k retrieval (Karpathy's test split), with raw and with CLIC-normalised texts."""
    items = list(_karpathy_items(read_files(root, "dataset_flickr30k.json", kind=dict)[0]))
    return [
        _retrieval_subtask("flickr30k", protocol, images, items, text)
        for protocol, text in (("karpathy", str), ("clic", clic_text))
    ]


def _load_flickr8k(root: Path, images: Path) -> list[Subtask]:
    """Load Flickr8k retrieval: Karpathy's test split."""
    items = _karpathy_items(read_files(root, "dataset_flickr8k.json", kind=dict)[0])
    return [_retrieval_subtask("flickr8k", "karpathy", images, items)]


def _load_docci(root: Path, images: Path) -> list[Subtask]:
    """Load DOCCI retrieval: the test split, with captions split into sentences and whole."""
    (file,) = read_files(root, "docci_descriptions.jsonlines")
    items = [
        Item(
            record.text("example_id"),
            record.text("image_file"),
            (_one_line(record.text("description")),),
        )
        for record in file.records()
        if record.text("split") == "test"
    ]
    return _long_caption_subtasks("docci", "test", images, items)


def _load_iiw(root: Path, images: Path) -> list[Subtask]:
    """Load IIW retrieval: for each set, captions split into sentences, and whole captions.

    Files are named as their set, or `data.jsonl` in a folder of its name.
    """
    # The files do not say how the images' names end.
    names = {
        key: str(path.relative_to(images))
        for path in (*images.glob("*/*"), *images.glob("*"))
        for key in (path.stem, path.name)
    }
    found: dict[str, list[Subtask]] = {}
    for path in files_of(root, *_IIW_FILES):
        own = path.parent.name if path.stem == "data" else path.stem
        name = own.lower().replace("-", "_")
        if name in found:
            raise SettingsError(f"{root}: two files are of the set {name}: remove one")
        items = [_iiw_item(record, names) for record in read_file(path).records()]
        found[name] = _long_caption_subtasks("iiw", name, images, items)
    if not found:
        raise SettingsError(f"there is no {' or '.join(_IIW_FILES)} in {root}")
    return [subtask for subtasks in found.values() for subtask in subtasks]


def _load_urban1k(root: Path, images: Path) -> list[Subtask]:
    """Load Urban-1k retrieval, with captions split into sentences and whole.

    A file has one caption, whose first line is read, as in the official evaluation.
    """
    own = root / "image"
    items = []
    for file in files_of(root, *_URBAN1K_FILES):
        record = read_file(file)
        text = record.with_field("caption", record.content[0]).text("caption")
        items.append(Item(record.name, f"{record.name}.jpg", (_one_line(text),)))
    if not items:
        raise SettingsError(f"there is no {' or '.join(_URBAN1K_FILES)} in {root}")
    return _long_caption_subtasks("urban1k", "test", own if own.is_dir() else images, items)


def _iiw_item(record: Record, names: Mapping[str, str]) -> Item:
    """Item of an IIW record: an image and its description, by humans or by a model."""
    key = record.text("image" if record.get("image/key") is None else "image/key")
    by_model = record.get("IIW") is None and record.get("IIW-P5B") is not None
    text = record.text("IIW-P5B" if by_model else "IIW")
    default = key if PurePath(key).suffix else f"{key}.jpg"
    return Item(key, names.get(key, default), (_one_line(text),))


def _coco_items(file: Record) -> Iterator[Item]:
    """Yield the items of a COCO annotation file: each image with its captions."""
    captions: dict[str, list[str]] = {}
    for record in file.list_records("annotations", "annotation"):
        captions.setdefault(f"{record.get('image_id')}", []).append(record.text("caption"))
    for record in file.list_records("images", "image"):
        name = record.text("file_name")
        own = captions.pop(f"{record.get('id')}", None)
        if not own:
            raise SettingsError(f"{record.where}: {shown(name)} has no caption")
        yield Item(name, f"val2017/{name}", tuple(own))
    if captions:
        raise SettingsError(
            f"{file.where}: {len(captions)} image_id of annotations are of no image (such as "
            f"{shown(next(iter(captions)))})"
        )


def _karpathy_items(file: Record) -> Iterator[Item]:
    """Yield the items of the test split from a file of Karpathy's splits."""
    for record in file.list_records("images", "image"):
        if record.text("split") == "test":
            name = record.text("filename")
            folder = "" if record.get("filepath") is None else f"{record.text('filepath')}/"
            texts = (
                sentence.text("raw") for sentence in record.list_records("sentences", "sentence")
            )
            yield Item(name, folder + name, tuple(texts))


def _one_line(text: str) -> str:
    """The text with all white space replaced by single spaces."""
    return " ".join(text.split())


def _long_caption_subtasks(
    benchmark: str, name: str, images: Path, items: Sequence[Item]
) -> list[Subtask]:
    """Two retrieval subtasks of long captions: split into sentences, and whole.

    Repeated sentences count once.
    """
    split_up = [
        replace(item, positives=tuple(dict.fromkeys(split(text))) or (text,))
        for item in items
        for text in item.positives
    ]
    return [
        _retrieval_subtask(benchmark, name, images, split_up),
        _retrieval_subtask(benchmark, f"{name}_whole", images, items),
    ]


def _retrieval_subtask(
    benchmark: str,
    name: str,
    images: Path,
    items: Iterable[Item],
    text: Callable[[str], str] = str,
) -> Subtask:
    """Retrieval subtask of items whose captions are normalised by a function.

    A caption of marks alone, of which nothing would be left, stays as it is.
    """
    normalised = tuple(
        Item(item.item, item.image, tuple(text(each) or each for each in item.positives))
        for item in items
    )
    return Subtask(benchmark, name, ("retrieval",), images, normalised)


RETRIEVAL = Benchmark(
    name=NAME,
    role="retrieval",
    label="Retrieval",
    load=None,
    headline=lambda metric, _: metric in ("i2t_r1", "t2i_r1", "i2t_r5", "t2i_r5"),
    unnamed=("raw", "clic"),
)
_OF_FILES = replace(RETRIEVAL, unnamed=(ALL,))
COCO = replace(
    _OF_FILES,
    name="coco",
    label="COCO retrieval",
    load=_load_coco,
    source=f"cocodataset.org: captions_val2017.json; or {_KARPATHY}: dataset_coco.json; or both; "
    "images: COCO's folder with val2017 and val2014",
    download=f"1 GB of val2017, 6 GB of val2014; annotations CC BY 4.0; images: {COCO_PHOTOS}",
    parts=("clic", "karpathy"),
)
FLICKR30K = replace(
    _OF_FILES,
    name="flickr30k",
    label="Flickr30k retrieval",
    load=_load_flickr30k,
    source=f"{_KARPATHY}: dataset_flickr30k.json; images: flickr30k-images of "
    "shannon.cs.illinois.edu/DenotationGraph",
    download=f"4 GB; images: {FLICKR_PHOTOS}",
    parts=("karpathy", "clic"),
)
FLICKR8K = replace(
    _OF_FILES,
    name="flickr8k",
    label="Flickr8k retrieval",
    load=_load_flickr8k,
    source=f"{_KARPATHY}: dataset_flickr8k.json; images: Flicker8k_Dataset of its authors' form",
    download=f"1 GB; images: {FLICKR_PHOTOS}",
    parts=("karpathy",),
)
DOCCI = replace(
    _OF_FILES,
    name="docci",
    label="DOCCI retrieval",
    load=_load_docci,
    source="google.github.io/docci: docci_descriptions.jsonlines; its images",
    download="annotations and images CC BY 4.0",
    parts=("test", "test_whole"),
)
IIW = replace(
    _OF_FILES,
    name="iiw",
    label="IIW retrieval",
    load=_load_iiw,
    source="the folders IIW-400, DCI_Test, DOCCI_Test, CM_3600, LocNar_Eval of "
    "github.com/google/imageinwords: datasets, each with its data.jsonl; their images",
    files=(*FILES, "*/data.jsonl"),
    download="annotations CC BY 4.0; images of DOCCI CC BY 4.0",
    parts=tuple(
        part
        for name in ("iiw_400", "dci_test", "docci_test", "cm_3600", "locnar_eval")
        for part in (name, f"{name}_whole")
    ),
)
URBAN1K = replace(
    _OF_FILES,
    name="urban1k",
    label="Urban-1k retrieval",
    load=_load_urban1k,
    source="huggingface.co/datasets/BeichenZhang/Urban1k: its folders caption and image",
    files=_URBAN1K_FILES,
    parts=("test", "test_whole"),
)
