"""Benchmarks of two images with a caption each, scored as groups: Winoground and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from compo_pipeline.benchmarks import hub
from compo_pipeline.benchmarks.files import Record, files_of, read_files, subtasks_of
from compo_pipeline.benchmarks.items import ALL, FILES, Benchmark, Item, Mean, Subtask
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import shown

_RETRIEVED = 30  # per cent
_EQBEN = ("youcook2", "gebc", "ag", "kubric_loc", "kubric_attr", "kubric_cnt", "sd")


@dataclass(frozen=True)
class _FileFormat:
    """File names and record fields of a benchmark whose items are two images with two captions.

    `files` are patterns of the official ones; where there are none, the hub's Parquet is read, if
    the benchmark is `on_hub`. `fields` are those of the first image, the second image, the first
    caption and the second caption; `ending` is what an image's name lacks. `subtask` is the field
    that names the subtask. `records` makes such records of those of an official file.
    """

    name: str
    files: tuple[str, ...]
    fields: tuple[str, str, str, str] = ("image_0", "image_1", "caption_0", "caption_1")
    ending: str = ""
    subtask: str | None = None
    records: Callable[[list[Record]], Iterable[Record]] = iter
    on_hub: bool = False

    def load(self, root: Path, images: Path) -> list[Subtask]:
        """Load the subtasks of the benchmark that has this file format."""
        rows = self._rows(root, images)
        ending = "" if rows.inside else self.ending
        found = [self._parse_item(record, ending) for record in rows.records]
        return subtasks_of(self.name, "group", rows.images, found)

    def _rows(self, root: Path, images: Path) -> hub.Rows:
        """Records of the official files, or else of Parquet files from the hub."""
        if self.on_hub and not files_of(root, *self.files):
            if not (files := hub.parquet_files(root)):
                raise SettingsError(
                    f"there is no {' or '.join(self.files)} in {root}, and no Parquet of the hub "
                    "(such as data/test-00000-of-00001.parquet)"
                )
            texts = filter(None, (*self.fields[2:], self.subtask))
            columns = (hub.columns_of_same_names(fields) for fields in (self.fields[:2], texts))
            return hub.read_split(root, files, images, *columns)
        official = [
            record
            for file in read_files(root, *self.files)
            for record in self.records(file.records())
        ]
        return hub.Rows(official, images, inside=False)

    def _parse_item(self, record: Record, ending: str) -> tuple[str, Item]:
        """Subtask name and item of a record: two images with a caption each."""
        image, other, caption, foil = map(record.text, self.fields)
        name = f"{record.get('id', record.name)}"
        item = Item(name, image + ending, (caption,), (foil,), (other + ending,))
        return record.text(self.subtask) if self.subtask else ALL, item


def _color_swap_records(records: list[Record]) -> Iterator[Record]:
    """Yield ColorSwap's records with image paths relative to the folder `images`."""
    for record in records:
        names = {key: record.text(key).removeprefix("images/") for key in ("image_1", "image_2")}
        yield record._replace(content=record.content | names)


def _eqben_records(records: list[Record]) -> Iterator[Record]:
    """Yield EqBen's records with the set that the image folder names, and one caption each.

    Of several captions the first counts.
    """
    for record in records:
        folder = record.text("image0").partition("/")[0]
        name = folder.removeprefix("eqben")
        if name not in _EQBEN:
            known = ", ".join(f"eqben{name}" for name in _EQBEN)
            raise SettingsError(
                f"{record.where}: image0 is in the folder {shown(folder)}, expected one of {known}"
            )
        captions = {key: record.get(key) for key in ("caption0", "caption1")}
        first = {key: text[0] for key, text in captions.items() if text and isinstance(text, list)}
        yield record._replace(content=record.content | first | {"set": name})


def _mmvp_records(records: list[Record]) -> Iterator[Record]:
    """Yield a record with two images and two captions for every two rows of MMVP-VLM."""
    if len(records) % 2:
        raise SettingsError(f"{records[-1].where}: the last row has no second of its pair")
    for record, second in zip(records[::2], records[1::2], strict=True):
        (name, kind, text), (other_name, _, other_text) = map(_three_texts, (record, second))
        pair = {
            "id": f"{name}-{other_name}",
            "type": kind,
            "image_0": f"{kind}/{name}",
            "image_1": f"{kind}/{other_name}",
            "caption_0": f"a photo of {text}",
            "caption_1": f"a photo of {other_text}",
        }
        yield record._replace(content=pair)


def _three_texts(record: Record) -> list[str]:
    """The three texts of an MMVP-VLM record (id, type, statement).

    Other contents are an error.
    """
    values = list(record.content.values())
    if len(values) != 3:
        raise SettingsError(f"{record.where}: expected 3 texts, got {shown(values)}")
    return [record.with_field("text", value).text("text") for value in values]


_COCO = _FileFormat("coco_counterfactuals", ("examples.jsonl",), ending=".jpg", on_hub=True)


def _load_coco_counterfactuals(root: Path, images: Path) -> list[Subtask]:
    """Load COCO-Counterfactuals: all pairs as groups, and 30% of them for retrieval.

    The draw is always the same.
    """
    (groups,) = _COCO.load(root, images)
    count = max(1, _RETRIEVED * len(groups.items) // 100)
    drawn = rng(_COCO.name).sample(range(len(groups.items)), count)
    items = [
        Item(f"{item.item}/{place}", image, texts)
        for item in (groups.items[number] for number in sorted(drawn))
        for place, (image, texts) in enumerate(
            ((item.image, item.positives), (item.other_images[0], item.negatives))
        )
    ]
    draw = (
        f"the {_RETRIEVED}% of the pairs for retrieval are drawn by us, the paper's are not known"
    )
    retrieved = Subtask(_COCO.name, "retrieval", ("retrieval",), groups.images, tuple(items))
    return [groups, replace(retrieved, deviations=(draw,))]


def _declare_benchmark(
    form: _FileFormat,
    label: str,
    source: str,
    *,
    average: tuple[str, Mean] | None = None,
    download: str = "",
) -> Benchmark:
    """Declaration of a benchmark with a given file format, and its average for summaries."""
    name, mean = average or (ALL, None)
    averages = {name: mean} if mean else {}
    return Benchmark(
        name=form.name,
        role="composition",
        label=label,
        load=form.load,
        headline=lambda metric, subtask: subtask == name and metric in ("text", "image", "group"),
        averages=dict.fromkeys(("text", "image", "group", "group_match"), averages),
        source=source,
        files=hub.WITH_PARQUET if form.on_hub else FILES,
        download=download,
    )


_OVER_ITEMS = (ALL, Mean((), by_items=True))
_EQBEN_MEAN = Mean(("youcook2", "gebc", "ag", Mean(_EQBEN[3:6]), "sd"))

WINOGROUND = _declare_benchmark(
    _FileFormat(
        "winoground",
        ("examples.jsonl",),
        ending=".png",
        subtask="collapsed_tag",
        on_hub=True,
    ),
    "Winoground",
    "huggingface.co/datasets/facebook/winoground: data/examples.jsonl, images: images.zip; or "
    "its Parquet",
    average=_OVER_ITEMS,
    download="0.4 GB; annotations and Getty's images: Meta Images Research Licence",
)
COLOR_SWAP = _declare_benchmark(
    _FileFormat(
        "color_swap",
        ("test.json",),
        ("image_1", "image_2", "caption_1", "caption_2"),
        records=_color_swap_records,
        on_hub=True,
    ),
    "ColorSwap",
    "github.com/Top34051/colorswap: data/test.json, images: images.zip; or the Parquet of "
    "huggingface.co/datasets/stanfordnlp/colorswap",
    download="annotations MIT",
)
BIVLC = _declare_benchmark(
    _FileFormat(
        "bivlc",
        ("test.jsonl", "test.json", "test.csv"),
        ("image", "negative_image", "caption", "negative_caption"),
        subtask="type",
        on_hub=True,
    ),
    "BiVLC",
    "huggingface.co/datasets/imirandam/BiVLC: its Parquet; or the same as test.jsonl or "
    "test.csv, `image` and `negative_image` the names of images that you store",
    average=_OVER_ITEMS,
    download="annotations MIT",
)
MMVP_VLM = _declare_benchmark(
    _FileFormat(
        "mmvp_vlm", ("Questions.csv",), ending=".jpg", subtask="type", records=_mmvp_records
    ),
    "MMVP-VLM",
    "huggingface.co/datasets/MMVP/MMVP_VLM: Questions.csv; images: MLLM_VLM Images",
    average=_OVER_ITEMS,
)
EQBEN = _declare_benchmark(
    _FileFormat(
        "eqben",
        ("*.json",),
        ("image0", "image1", "caption0", "caption1"),
        subtask="set",
        records=_eqben_records,
    ),
    "EqBen",
    "github.com/Wangt-CN/EqBen: private_info_global.json or its subset; images: below "
    "eqbenag, eqbenyoucook2, ...",
    average=("average", _EQBEN_MEAN),
    download="annotations Apache-2.0",
)
COCO_COUNTERFACTUALS = Benchmark(
    name=_COCO.name,
    role="composition",
    label="COCO-Counterfactuals",
    load=_load_coco_counterfactuals,
    headline=lambda metric, name: metric in ("text", "image", "group", "i2t_r1", "t2i_r1"),
    source="huggingface.co/datasets/Intel/COCO-Counterfactuals: data/examples.jsonl; images: "
    "images.zip; or its Parquet",
    files=hub.WITH_PARQUET,
    download="annotations and images CC BY 4.0",
    parts=(ALL, "retrieval"),
)
