"""Mirrors of data sets: images in tars and Parquet files, captions in tables of their own."""

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from tests.data.tables import write_table

from compo_pipeline.core.records import Rejected
from compo_pipeline.core.settings import leaves, parse, with_values
from compo_pipeline.data import readers
from compo_pipeline.data.images.decoding import Limits, inspect, load
from compo_pipeline.data.quality.caption_form import plain
from compo_pipeline.data.readers.record import NOT_CAPTIONED, RawCaption, SourceError
from compo_pipeline.data.settings import CaptionTable, Columns, DataSettings, SourceSettings
from compo_pipeline.pipelines.ingest.nodes import ingest_captions
from compo_pipeline.pipelines.validation.nodes import validate_facts
from compo_pipeline.project.settings import Parameters

COUNT = 8
KEYS = [f"{number:09}" for number in range(COUNT)]
URLS = [f"https://example.org/{number}.jpg?a=1,2" for number in range(COUNT)]
CAPTIONS = [f"A dog, number {number}." for number in range(COUNT)]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
BOTH = pytest.mark.parametrize("form", ["webdataset", "image_parquet"])


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 8 + seed, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


IMAGES = [png(number) for number in range(COUNT)]


def write_tar(path: Path, numbers: Iterable[int], urls: list[str] = URLS) -> None:
    with tarfile.open(path, "w") as shard:
        for number in numbers:
            parts = {"png": IMAGES[number], "txt": CAPTIONS[number].encode()}
            parts["json"] = json.dumps({"url": urls[number]}).encode()
            for ending, content in parts.items():
                member = tarfile.TarInfo(f"{KEYS[number]}.{ending}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def write_parquet(
    path: Path, numbers: Iterable[int], images: list[bytes] = IMAGES, **options: Any
) -> None:
    chosen = list(numbers)
    cells = [{"bytes": images[number], "path": None} for number in chosen]
    columns = {"key": KEYS, "url": URLS, "caption": CAPTIONS}
    table = {name: [values[number] for number in chosen] for name, values in columns.items()}
    pq.write_table(pa.table({"image": pa.array(cells, IMAGE), **table}), path, **options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The same images in two tars and two Parquet files."""
    for shard in range(2):
        numbers = range(shard * 4, shard * 4 + 4)
        write_tar(tmp_path / f"{shard}.tar", numbers)
        write_parquet(tmp_path / f"{shard}.parquet", numbers, row_group_size=2)
    return tmp_path


def settings(root: Path, form: str, **captions: str | None) -> DataSettings:
    pattern = "[01].tar" if form == "webdataset" else "[01].parquet"
    return DataSettings(root, form, {"train": pattern}, captions=CaptionTable(**captions))


def read(data: DataSettings) -> list[RawCaption]:
    found = list(readers.read(data))
    assert all(isinstance(record, RawCaption) for record in found)
    return [record for record in found if isinstance(record, RawCaption)]


def joined(data: DataSettings) -> tuple[list[RawCaption | Rejected], dict[str, Any]]:
    report: dict[str, Any] = {}
    return list(readers.read(data, report)), report


def test_tars_and_parquet_files_of_the_same_images_are_equal(root: Path) -> None:
    tars, rows = (read(settings(root, form)) for form in ("webdataset", "image_parquet"))
    assert [record.own for record in rows] == [(text,) for text in CAPTIONS]
    assert [record.own for record in tars] == [record.own for record in rows]
    assert len({record.sample_id for record in rows}) == COUNT
    for content, tar, row in zip(IMAGES, tars, rows, strict=True):
        expected = Image.open(io.BytesIO(content)).tobytes()
        assert load(root, tar.image, Limits()).tobytes() == expected
        assert load(root, row.image, Limits()).tobytes() == expected
        assert (
            inspect(root, tar.image, Limits()).sha256 == inspect(root, row.image, Limits()).sha256
        )
    assert len(tars) == len(rows) == COUNT


def test_a_column_of_bytes_and_an_id(tmp_path: Path) -> None:
    table = pa.table({"jpg": IMAGES, "mask": [b""] * COUNT, "txt": CAPTIONS, "uid": KEYS})
    pq.write_table(table, tmp_path / "0.parquet")
    columns = Columns(image="jpg", caption="txt", id="uid")
    data = DataSettings(tmp_path, "image_parquet", {"train": "*.parquet"}, columns=columns)
    assert [record.sample_id for record in read(data)] == [f"train-{key}" for key in KEYS]
    assert [record.image for record in read(data)][3] == "0.parquet/jpg/3"
    with pytest.raises(
        SourceError, match=r"columns\.image: .* images .* in jpg, mask, .* got None"
    ):
        read(replace(data, columns=replace(columns, image=None)))
    with pytest.raises(SourceError, match=r"columns\.image: .* images .* in jpg, mask, .* got txt"):
        read(replace(data, columns=replace(columns, image="txt")))


@pytest.mark.parametrize(
    ("form", "suffix", "key", "values"),
    [
        ("webdataset", "csv", "key", KEYS),
        ("webdataset", "jsonl", "url", URLS),
        ("image_parquet", "tsv", "url", URLS),
        ("image_parquet", "parquet", "key", KEYS),
    ],
)
def test_captions_are_joined_by_key_or_address(
    root: Path, form: str, suffix: str, key: str, values: list[str]
) -> None:
    rows = [{"of": value, "new": f"New {n}."} for n, value in enumerate(values)]
    write_table(root / f"table.{suffix}", rows[::-1])
    image_key = "url" if key == "url" else None
    data = settings(
        root, form, file=f"table.{suffix}", key="of", caption="new", image_key=image_key
    )
    assert [record.own for record in read(data)] == [(row["new"],) for row in rows]
    (report,) = (joined(data)[1],)
    assert (report["images"], report["captions"], report["matched"]) == (COUNT, COUNT, COUNT)
    assert report["captions_without_image"] == report["images_without_caption"] == {}


def test_a_folder_of_texts_beside_tars_as_the_page_says(
    root: Path, project: Path, context: Callable[..., Any]
) -> None:
    """FSC-CLIP's captions by CoCa, with the options of the page's own command."""
    (root / "coca_captions").mkdir()
    for key, text in zip(KEYS, CAPTIONS, strict=True):
        marked = f"<start_of_text>{text} <end_of_text>,,"
        (root / "coca_captions" / f"{key}.txt").write_text(f"{marked}\nmore\n", "utf-8")
    page = (project / "docs" / "how-to" / "your-data.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"--env=fsc_cc3m --params '(data\.format=webdataset.*)'", page)
    given = with_values({}, dict(option.split("=") for option in options.split(",")))
    own = with_values({}, {"data.root": str(root), **dict(leaves(given))})
    data = parse(DataSettings, context("fsc_cc3m", **own).params["data"], "data")
    (root / "0.tar").rename(root / "00.tar")
    (root / "1.tar").rename(root / "01.tar")
    assert [plain(record.own[0]) for record in read(data)] == CAPTIONS


def test_the_example_of_the_documentation(root: Path, project: Path) -> None:
    text = (project / "docs" / "how-to" / "your-data.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Mirrors\n(.*?)\n## ", text, re.DOTALL)
    (example,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    given = {**yaml.safe_load(example)["data"], "root": str(root)}
    given["splits"] = {name: own for name, own in given["splits"].items() if own}
    (root / "dreamlip").mkdir()
    rows = [
        {"Image Path": url, "shortLLA_captions": text}
        for url, text in zip(URLS, CAPTIONS, strict=True)
    ]
    write_table(root / "dreamlip" / "cc3m.csv", rows)
    assert [record.own[0] for record in read(parse(DataSettings, given, "data"))] == CAPTIONS


FAULTS = [
    {"url": URLS[0], "caption": "New 0."},
    {"url": URLS[0], "caption": "Another 0."},
    {"url": "https://example.org/gone.jpg", "caption": "Gone."},
    {"url": "", "caption": "Of nothing."},
    {"url": URLS[1], "caption": "New 1."},
    {"url": URLS[2], "caption": "New 2."},
    {"url": URLS[3], "caption": "New 3."},
]


@BOTH
def test_what_is_not_joined_is_counted_by_its_reason(root: Path, form: str) -> None:
    lines = [json.dumps(row) for row in FAULTS]
    text = "\n".join([*lines, "{no json", json.dumps({"url": URLS[4]})])
    (root / "captions.jsonl").write_text(text, "utf-8")
    data = settings(root, form, file="captions.jsonl", key="url", image_key="url")
    urls = [*URLS[:4], URLS[4], "", URLS[3], URLS[7]]  # one without, one for the second time
    if form == "webdataset":
        write_tar(root / "1.tar", range(4, 8), urls)
        (root / "1.tar").write_bytes((root / "1.tar").read_bytes()[: -5 * 1024])
    else:
        cells = [{"bytes": each, "path": None} for each in IMAGES[4:]]
        columns = {"url": [each or None for each in urls[4:]], "image": pa.array(cells, IMAGE)}
        pq.write_table(pa.table(columns), root / "1.parquet")
    records, report = joined(data)
    own = [record.own for record in records if isinstance(record, RawCaption)]
    assert own == [(f"New {number}.",) for number in range(4)]
    assert report["captions_without_image"] == {
        "duplicate_key": 1,
        "empty_key": 1,
        "not_in_the_shards": 1,
        "unreadable": 2,
    }
    assert (
        report["captions"] == len(FAULTS) + 2 == 4 + sum(report["captions_without_image"].values())
    )
    missing = report["images_without_caption"]
    assert report["images"] == len(records) == 4 + sum(missing.values())
    assert (missing["empty_key"], missing["duplicate_key"]) == (1, 1)
    rejected = [record for record in records if isinstance(record, Rejected)]
    assert len(rejected) == sum(missing.values())
    assert [each.rule for each in rejected].count(NOT_CAPTIONED) == len(rejected) - missing.get(
        "unreadable", 0
    )


def test_the_report_of_ingest_has_the_join_and_no_bad_row(root: Path, shipped: Parameters) -> None:
    write_table(root / "captions.csv", [row for row in FAULTS if row["url"]])
    one = settings(root, "image_parquet", file="captions.csv", key="url", image_key="url")
    given = replace(shipped.ingest, journal=None)
    _, facts, unparseable, report, manifest = ingest_captions(
        readers.locate(one), one, given, shipped.prepare
    )
    (found,) = report["captions_joined"].values()
    assert found["matched"] == report["rows"] == 4
    assert found["images_without_caption"] == {"not_in_the_table": 4}
    assert report["unparseable"] == 0
    assert "captions.csv" in manifest["files"]
    _, result, _ = validate_facts(facts, unparseable, report, shipped.validation)
    assert (result[NOT_CAPTIONED], result["unparseable"]) == (4, 0)

    source = SourceSettings(root=".", captions=one.captions)
    two = DataSettings(root, one.format, one.splits, sources={"cc3m": source})
    *_, report, _ = ingest_captions(readers.locate(two), two, given, shipped.prepare)
    assert report["captions_joined"] == {"cc3m": found}


def test_of_less_than_half_the_join_is_refused(root: Path) -> None:
    rows = [{"key": key, "caption": "A dog."} for key in KEYS]
    others = [{"key": f"x{number}", "caption": "A cat."} for number in range(30)]
    data = settings(root, "webdataset", file="captions.csv")
    # Few captions of many images, and many captions of few images, are no fault.
    for table, matched in ((rows[:2], 2), (rows + others, COUNT), (rows[:4] + others, 4)):
        write_table(root / "captions.csv", table)
        assert joined(data)[1]["matched"] == matched
    write_table(root / "captions.csv", rows[:3] + others)
    with pytest.raises(SourceError) as raised:
        joined(data)
    message = str(raised.value)
    assert "\n" not in message and message.startswith("data.captions.key: joined by 'key'")
    assert f"3 of {COUNT} images have one of 33 captions" in message
    for example in (*KEYS[3:6], "x0", "x1", "x2"):
        assert f"'{example}'" in message
    assert KEYS[6] not in message and "x3" not in message


@pytest.mark.parametrize(
    ("captions", "error"),
    [
        ({"file": "none.csv"}, r"data\.captions\.file: no file below .* matches 'none\.csv'"),
        ({"file": "a.csv", "key": "uid"}, r"data\.captions\.file: .*a\.csv has no column uid \(it"),
        ({"file": "cut.parquet"}, r"data\.captions\.file: .*cut\.parquet is damaged"),
        ({"file": "../a.csv"}, r"data\.captions\.file: .*expected files below data\.root"),
    ],
)
def test_a_table_that_cannot_be_joined_names_the_setting(
    root: Path, captions: dict[str, str], error: str
) -> None:
    write_table(root / "a.csv", [{"key": "1", "caption": "A dog."}])
    (root / "cut.parquet").write_bytes((root / "0.parquet").read_bytes()[:300])
    with pytest.raises(SourceError, match=error):
        readers.locate(settings(root, "webdataset", **captions))


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_cut_parquet_file_is_refused(root: Path, share: float) -> None:
    content = (root / "0.parquet").read_bytes()
    (root / "0.parquet").write_bytes(content[: int(share * len(content))])
    with pytest.raises(SourceError, match=r"0\.parquet is damaged.*fetch it again"):
        list(readers.read(settings(root, "image_parquet")))


def test_a_bomb_and_no_image_are_found_in_ingest(tmp_path: Path, shipped: Parameters) -> None:
    bomb = io.BytesIO()
    Image.new("1", (8_000, 8_000)).save(bomb, "png")
    images = [bomb.getvalue(), b"<html>", b"", IMAGES[3]]
    write_parquet(tmp_path / "0.parquet", range(4), images)
    data = settings(tmp_path, "image_parquet")
    given = replace(shipped.ingest, journal=None)
    *_, report, _ = ingest_captions(readers.locate(data), data, given, shipped.prepare)
    assert report["images_unreadable"] == {"empty": 1, "not_an_image": 1, "oversized": 1}


def test_no_parquet_file_outside_the_root_is_read(root: Path) -> None:
    inner = root / "inner"
    inner.mkdir()
    (inner / "0.parquet").symlink_to(root / "0.parquet")
    data = settings(inner, "image_parquet")
    with pytest.raises(SourceError, match=r"a link that leads out"):
        list(readers.read(data))
    records = read(replace(data, follow_symlinks=True))
    assert inspect(inner, records[0].image, Limits()).error.startswith("out_of_root")
    assert inspect(inner, records[0].image, Limits(follow_symlinks=True)).error is None
