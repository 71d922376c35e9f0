"""Ingest and validation on bad input: each case ends in quarantine with its reason."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from PIL import Image

from compo_pipeline.core.files import write_files
from compo_pipeline.core.records import Caption, Fact
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.catalog import PageDataset, RowsDataset
from compo_pipeline.data.quality.quarantine import TooManyBadRows, valid_captions
from compo_pipeline.data.quality.settings import RowRule
from compo_pipeline.data.readers import locate
from compo_pipeline.data.readers.record import SourceError
from compo_pipeline.data.settings import Columns, DataSettings, SampleSettings, SourceSettings
from compo_pipeline.pipelines.ingest.nodes import ingest_captions, prepare_source
from compo_pipeline.pipelines.validation.nodes import (
    measure_language,
    select_valid_captions,
    validate_facts,
)
from compo_pipeline.pipelines.validation.pipeline import create_pipeline
from compo_pipeline.project.settings import Parameters
from compo_scenes.dataset import SceneSettings

# What pipelines make: captions, and what else of them is looked at.
Nodes = Callable[..., tuple[Any, ...]]
Chain = Callable[[], tuple[Any, Any, Any, Any]]
CAPTION = "The image shows a dog on a red sofa. It sleeps in the warm sun."


@pytest.fixture
def ingest(shipped: Parameters) -> Nodes:
    """The node on a source, with the settings of conf/base but for a journal."""
    settings = replace(shipped.ingest, journal=None)
    return lambda data: ingest_captions(locate(data), data, settings, shipped.prepare)


def noise(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.effect_noise((64, 48), seed + 1).save(path)


def write(root: Path, captions: list[dict[str, Any]], suffix: str = "") -> None:
    lines = [json.dumps(caption) + "\n" for caption in captions]
    (root / "captions.jsonl").write_text("".join(lines) + suffix, "utf-8")


def write_texts(root: Path, *texts: str) -> None:
    """Captions, each of an image of its own."""
    for number in range(len(texts)):
        noise(root / f"{number}.jpg", number)
    rows = [{"id": n, "image": f"{n}.jpg", "caption": text} for n, text in enumerate(texts)]
    write(root, rows)


@pytest.fixture
def chain(tmp_path: Path, ingest: Nodes, shipped: Parameters) -> Chain:
    """Both pipelines over captions.jsonl in the temporary folder."""
    data = DataSettings(tmp_path, "table", {"train": "captions.jsonl"}, columns=Columns(id="id"))
    validation = replace(shipped.validation, tolerated_share=0.99)

    def run() -> tuple[Any, Any, Any, Any]:
        captions, facts, unparseable, report, _ = ingest(data)
        quarantine, result, docs = validate_facts(facts, unparseable, report, validation)
        write_files(docs, tmp_path.parent / f"{tmp_path.name}_docs")
        language = measure_language(captions, "compo_en", validation)
        valid = select_valid_captions(captions, quarantine, result, language)
        return captions, valid, quarantine, report

    return run


def test_the_bad_input_list(tmp_path: Path, chain: Chain) -> None:
    """Nothing stops the run, nothing is lost, every reason is told."""
    for number in range(14):
        noise(tmp_path / f"{number}.jpg", number)
    whole = (tmp_path / "1.jpg").read_bytes()
    (tmp_path / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "2.jpg").write_bytes(b"")
    Image.new("1", (8_000, 8_000)).save(tmp_path / "3.png")
    rows: list[tuple[str, str, str]] = [
        ("0.jpg", CAPTION, ""),
        ("missing.jpg", CAPTION, "image_present: missing"),
        ("1.jpg", CAPTION, "image_decodes: truncated"),
        ("2.jpg", CAPTION, "image_present: empty"),
        ("3.png", CAPTION, "image_decodes: oversized"),
        ("../outside.jpg", CAPTION, "image_inside_root: out_of_root"),
        ("4.jpg", "A single sentence stands alone here.", ""),
        ("5.jpg", "", "enough_sentences"),
        ("6.jpg", "🐶🐶🐶", "enough_sentences"),
        ("7.jpg", "A dog 🐶 sleeps on the sofa. Der Hund schläft auf dem Sofa.", ""),
        ("8.jpg", "一只狗睡在红色沙发上。它睡得很香。", "enough_sentences"),
        ("9.jpg", CAPTION, ""),
        ("9.jpg", CAPTION, "unique_pair"),
    ]
    records = [
        {"id": f"r{n}", "image": image, "caption": text} for n, (image, text, _) in enumerate(rows)
    ]
    records.append({"id": "r11", "image": "10.jpg", "caption": CAPTION})
    expected = [*(reason for _, _, reason in rows), "unique_id"]
    write(tmp_path, records, '{"id": "r99", "image": "12.jpg", "caption": null}\n{"cut\n')

    captions, valid, quarantine, report = chain()

    found = {entry.row: f"{entry.rule}: {entry.detail}" for entry in quarantine}
    assert len(captions) == len(records)
    for row, reason in enumerate(expected):
        rule, _, error = reason.partition(": ")
        assert (row in found) == bool(reason), (row, found.get(row))
        if reason:
            assert found[row].startswith(f"{rule}: ")
            assert error in found[row]
    broken = [entry for entry in quarantine if entry.row < 0]
    assert [entry.rule for entry in broken] == ["unparseable", "unparseable"]
    assert len(valid) + len(quarantine) == len(records) + len(broken)
    assert [caption.image for caption in valid] == ["0.jpg", "4.jpg", "7.jpg", "9.jpg"]
    assert valid[2].sentences[0] == "A dog 🐶 sleeps on the sofa."
    assert (valid[0].width, valid[0].height) == (64, 48)
    reasons = ("empty", "missing", "out_of_root", "oversized", "truncated")
    assert report["images_unreadable"] == dict.fromkeys(reasons, 1)
    assert report["unparseable"] == 2


def test_a_sample_is_taken_before_anything_is_measured(tmp_path: Path, ingest: Nodes) -> None:
    """Of what was downloaded: one image of ten is gone, and the report says both."""
    (tmp_path / "00000").mkdir()
    rows = [
        {"key": f"{n}", "status": "failed" if n == 3 else "success", "caption": f"dog{n} on a sofa"}
        for n in range(10)
    ]
    for row in rows:
        Image.effect_noise((64, 48), 90).save(tmp_path / "00000" / f"{row['key']}.jpg")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "00000.parquet")
    sample = SampleSettings(rows=4, seed=1)
    data = DataSettings(tmp_path, "img2dataset", {"train": "*.parquet"}, sample=sample)
    captions, facts, gone, report, manifest = ingest(data)
    assert (len(captions), len(facts), report["images"]) == (4, 4, 4)
    sample = {"split": "train", "seed": 1, "records": 9, "taken": 4, "left_out": 5}
    assert report["sample"] == sample
    counts = {"source": 10, "used": 4, "rejected": {"not_downloaded": 1}}
    assert report["records"] == {**counts, "left_out": {"data.sample.rows": 5}}
    assert report["unparseable"] == 0
    assert [entry.sample_id for entry in gone] == ["train-3"]
    assert manifest["count"] == 4 + 1 and len(manifest["files"]) == 1


@pytest.mark.parametrize(
    ("name", "file", "content", "reason"),
    [
        ("table", "t.jsonl", '{"image": "a.jpg", "caption": null}\n' * 3, "nothing in caption"),
        ("table", "t.csv", "image,caption\n" + "a.jpg,A dog,red\n" * 3, "3 fields, expected 2"),
        ("cogvlm_laion", "t.csv", "a.jpg\n" * 3, "one column, expected an image and its caption"),
    ],
)
def test_a_split_without_a_usable_record_says_why(
    tmp_path: Path, ingest: Nodes, name: str, file: str, content: str, reason: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(SourceError) as raised:
        ingest(DataSettings(tmp_path, name, {"train": file}))
    assert "data.splits.train: none of its " in raised.value.message
    assert reason in raised.value.message and "\n" not in raised.value.message


def test_a_split_of_a_file_of_several_says_what_its_column_has(
    tmp_path: Path, ingest: Nodes
) -> None:
    data = DataSettings(tmp_path, "table", dict.fromkeys(("train", "val"), "t.csv"))
    for values, reason in (
        ("train", r"where there are none, .*data\.columns\.split.* data\.splits\.val=null"),
        ("fold", r"splits\.val: .* split is 'fold', expected one of train, val; where there are"),
    ):
        (tmp_path / "t.csv").write_text(
            f"image,caption,split\na.jpg,A dog on a sofa.,train\nb.jpg,A cat.,{values}\n"
        )
        with pytest.raises(SourceError, match=reason):
            ingest(data)


def test_a_half_downloaded_folder_says_what_is_missing(
    shared: Path, tmp_path: Path, ingest: Nodes, shipped: Parameters
) -> None:
    """COCO in its official layout, without every other image; counted in its annotations."""
    source, root = shared / "coco_mini", tmp_path / "coco"
    shutil.copytree(source / "annotations", root / "annotations")
    annotated = json.loads((source / "annotations" / "captions_train2017.json").read_text())
    files = {one["id"]: one["file_name"] for one in annotated["images"]}
    gone = set(sorted(files)[::2])
    (root / "train2017").mkdir()
    for number in files.keys() - gone:
        shutil.copy(source / "train2017" / files[number], root / "train2017")
    rows = sum(one["image_id"] in gone for one in annotated["annotations"])
    found = ingest(DataSettings(root, "coco_captions", {"train": "train2017"}))
    captions, facts, unparseable, report, _ = found
    quarantine, result, _ = validate_facts(facts, unparseable, report, shipped.validation)
    assert sum(entry.rule == "image_present" for entry in quarantine) == rows
    with pytest.raises(TooManyBadRows) as raised:
        valid_captions(captions, quarantine, result)
    message = raised.value.message
    assert f"image_present: {rows} records, such as train2017/" in message
    assert "Download the images that are missing" in message
    for number in gone:
        shutil.copy(source / "train2017" / files[number], root / "train2017")
    data = DataSettings(root, "coco_captions", {"train": "train2017"})
    _, facts, unparseable, report, _ = ingest(data)
    _, complete, _ = validate_facts(facts, unparseable, report, shipped.validation)
    assert complete["rules"]["image_present"]["broken_by"] == 0


def docs_of(folder: Path) -> str:
    return (folder.parent / f"{folder.name}_docs" / "index.html").read_text("utf-8")


def test_few_texts_for_many_images_are_a_warning(
    tmp_path: Path, chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    """Names of classes as captions: contrastive training learns nothing from them."""
    labels = ["a photo of a weld seam with a crack", "a photo of a weld seam with a pore"]
    texts = [labels[number % 3 == 0] for number in range(12)]
    write_texts(tmp_path, *texts)
    _, valid, _, report = chain()
    assert len(valid) == 12
    found = {"images": 12, "texts": 2, "most_frequent": labels[0], "rows": 8}
    assert report["distinct_texts"]["train"] == found
    (line,) = [line for line in caplog.text.splitlines() if "WARNING" in line]
    assert "2 for 12 (train)" in line and "zero-shot classification" in line
    assert "2 for 12 (train)" in docs_of(tmp_path) and labels[0] in docs_of(tmp_path)
    write_texts(tmp_path, *(f"{text} {number}" for number, text in enumerate(texts)))
    caplog.clear()
    chain()
    assert "WARNING" not in caplog.text


def test_what_is_no_caption_is_counted_with_examples(
    tmp_path: Path, chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {
        "A dog &amp; a cat lie on a &quot;red&quot; sofa": 'A dog & a cat lie on a "red" sofa',
        "A bird&amp;#39;s nest hangs in a tree": "A bird's nest hangs in a tree",
        "A ho\u200brse stands on a green\ufeff hill": "A horse stands on a green hill",
        "<p>A cow walks on a <b>long</b> beach</p>": "<p>A cow walks on a <b>long</b> beach</p>",
        "A goat at https://example.org/goat on a hill": "",
        "holiday in the hills 0042.JPG": "",
        "A family 👨\u200d👩\u200d👧 walks & talks in R&D": "",
    }
    write_texts(tmp_path, *texts)
    captions, _, _, report = chain()
    assert [row.sentences[0] for row in captions] == [new or old for old, new in texts.items()]
    counts = {name: found["captions"] for name, found in report["forms"].items()}
    assert counts == {
        "HTML entities, cleaned": 2,
        "zero-width characters, cleaned": 1,
        "markup": 1,
        "an address": 1,
        "nothing but a file name": 1,
        "words without spaces, which ingest cannot count": 0,
    }
    (line,) = [line for line in caplog.text.splitlines() if "WARNING" in line]
    for text in ("markup, in 1 of 7", "https://example.org/goat", "0042.JPG"):
        assert text in line
    assert "holiday in the hills 0042.JPG" in docs_of(tmp_path)
    assert "<p>A cow" not in docs_of(tmp_path)


@pytest.mark.parametrize("text", ["一只狗睡在红色的沙发上。", "สุนัขนอนอยู่บนโซฟาสีแดง"])
def test_captions_without_spaces_are_named(
    tmp_path: Path, chain: Chain, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    write_texts(tmp_path, CAPTION, text)
    chain()
    assert f"in 1 of 2 captions, such as {text!r}" in caplog.text
    assert "validation.known_words" in caplog.text


def test_an_error_says_that_words_are_not_parted(tmp_path: Path, chain: Chain) -> None:
    """Else all that is said of Chinese captions is that they are too short."""
    write_texts(tmp_path, "一只狗睡在红色的沙发上。")
    with pytest.raises(TooManyBadRows, match=r"without spaces, .*ingest.sentences.least_words=1"):
        chain()


def test_real_coco(shared: Path, ingest: Nodes) -> None:
    splits = {"train": "train2017", "test": "val2017"}
    data = DataSettings(shared / "coco_mini", "coco_captions", splits)
    captions, facts, unparseable, report, manifest = ingest(data)
    assert (len(captions), len(facts), unparseable) == (795, 795, [])
    assert manifest["count"] == 161
    assert report["images_unreadable"] == {}
    # One caption of 40 words leaves its own row without a sentence, and the others with four.
    assert sum(not caption.sentences for caption in captions) == 1
    assert all(len(caption.sentences) >= 4 for caption in captions if caption.sentences)


@pytest.mark.parametrize(
    ("words", "broken", "held"), [(60, "longest_sentence", "shortest"), (2, "shortest", "longest")]
)
def test_a_caption_beyond_a_limit_breaks_that_limit_alone(
    tmp_path: Path, chain: Chain, words: int, broken: str, held: str
) -> None:
    write_texts(tmp_path, CAPTION, " ".join(["word"] * words))
    _, _, (entry,), _ = chain()
    assert (entry.row, entry.rule) == (1, "enough_sentences")
    assert f"also breaks {broken}" in entry.detail and held not in entry.detail


def test_backslashes_between_folders_are_told(tmp_path: Path, chain: Chain) -> None:
    noise(tmp_path / "jpg" / "0.jpg", 0)
    captions = [{"id": 0, "image": "jpg/0.jpg", "caption": CAPTION}]
    write(tmp_path, [*captions, {"id": 1, "image": "jpg\\0.jpg", "caption": CAPTION}])
    _, _, (entry,), _ = chain()
    assert entry.rule == "image_present"
    assert "folders are parted by /" in entry.detail
    assert "also breaks" not in entry.detail


@pytest.fixture
def two_sources(tmp_path: Path, ingest: Nodes, shipped: Parameters) -> Nodes:
    """Both pipelines over `captions.jsonl` and `held.jsonl` of the sources a and b."""
    sources = {
        name: SourceSettings(splits={"train": "captions.jsonl", "test": "held.jsonl"})
        for name in "ab"
    }

    def run(rules: dict[str, RowRule] | None = None, **changes: Any) -> tuple[Any, ...]:
        data = DataSettings(tmp_path, "table", {}, sources=sources, **changes)
        captions, facts, unparseable, report, manifest = ingest(data)
        validation = replace(
            shipped.validation,
            tolerated_share=0.99,
            rules={**shipped.validation.rules, **(rules or {})},
        )
        quarantine, result, _ = validate_facts(facts, unparseable, report, validation)
        return captions, valid_captions(captions, quarantine, result), quarantine, report, manifest

    return run


def write_source(folder: Path, train: dict[str, str], test: dict[str, str]) -> None:
    """The tables of a source: captions by image."""
    for name, rows in (("captions", train), ("held", test)):
        lines = (json.dumps({"image": image, "caption": text}) for image, text in rows.items())
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


def test_images_of_several_sources_are_found_by_content(tmp_path: Path, two_sources: Nodes) -> None:
    """One is held out in another source, one trains with the same caption, one with another."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(4):
            place = tmp_path / name / f"{number}.jpg"
            Image.effect_noise((64, 48), 40 + number).save(place)
            # Of other pixels than the other source's: the hash is of the bytes.
            if number == 0:
                Image.effect_noise((64, 48), 90).save(place)
    for number in (1, 2, 3):
        shutil.copy(tmp_path / "a" / f"{number}.jpg", tmp_path / "b" / f"{number}{number}.jpg")
    write_source(tmp_path / "a", {f"{n}.jpg": CAPTION for n in range(1, 4)}, {"0.jpg": CAPTION})
    write_source(
        tmp_path / "b",
        {"0.jpg": CAPTION, "22.jpg": CAPTION, "33.jpg": CAPTION.replace("dog", "cat")},
        {"11.jpg": CAPTION, "../a/1.jpg": CAPTION},
    )
    captions, valid, quarantine, report, manifest = two_sources()
    rules = {entry.sample_id: entry.rule for entry in quarantine}
    assert rules == {
        "a/train-0": "no_leak",
        "b/train-1": "unique_pair",
        "b/test-1": "image_inside_root",
    }
    ids = {row.sample_id: row.image_id for row in valid}
    assert ids["b/train-2"] == ids["a/train-2"] == "a/train-3.jpg"
    assert len(set(ids.values())) == len(ids) - 1
    assert {row.source for row in captions} == {"a", "b"}
    assert {row.image for row in valid} == {
        *("a/0.jpg", "a/2.jpg", "a/3.jpg"),
        *("b/0.jpg", "b/33.jpg", "b/11.jpg"),
    }
    assert report["rows_by_source"] == {"a": 4, "b": 5}
    assert report["images_of_several_sources"] == {"a, b": 3}
    assert set(manifest["files"]) == {
        f"{name}/{file}.jsonl" for name in "ab" for file in ("captions", "held")
    }


def test_each_source_has_a_sample_of_its_own(tmp_path: Path, two_sources: Nodes) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.effect_noise((64, 48), 40).save(tmp_path / name / f"{number}.jpg")
        write_source(
            tmp_path / name,
            {f"{n}.jpg": CAPTION.replace("dog", f"dog{n}{name}") for n in range(5)},
            {"5.jpg": CAPTION},
        )
    captions, *_, report, _ = two_sources(sample=SampleSettings(rows=2))
    assert report["rows_by_source"] == {"a": 3, "b": 3}
    assert {name: found["taken"] for name, found in report["sample"].items()} == {"a": 2, "b": 2}
    again, *_ = two_sources(sample=SampleSettings(rows=2))
    assert list(again) == list(captions)


ROWS = [
    Caption(f"train-{n}", "i", f"{n}.jpg", 64, 48, ("A dog sits here.",) * 2, "t", "train")
    for n in range(20)
]
FACTS = [
    Fact(n, f"train-{n}", f"{n}.jpg", "train", f"{n}", None, 64, 48, 2, 4, 4, False, False, False)
    for n in range(20)
]


@pytest.fixture
def catalog(shipped: Parameters, tmp_path: Path) -> DataCatalog:
    """What the pipeline reads and writes, with the project's rules; its outputs lie on disk."""
    inputs: dict[str, Any] = {
        "captions": ROWS,
        "unparseable": [],
        "ingest_report": {"captions": 20, "distinct_texts": {}, "forms": {}},
        "params:language.model": "compo_en",
        "params:validation": shipped.validation,
    }
    outputs: dict[str, Any] = {
        "quarantine": RowsDataset(filepath=str(tmp_path / "bad.parquet"), row="Rejected"),
        "valid_captions": RowsDataset(filepath=str(tmp_path / "good.parquet"), row="Caption"),
        "validation_result": JSONDataset(filepath=str(tmp_path / "result.json")),
        "caption_language": JSONDataset(filepath=str(tmp_path / "language.json")),
        "data_docs": PageDataset(filepath=str(tmp_path / "data_docs"), page="index.html"),
    }
    return DataCatalog({name: MemoryDataset(value) for name, value in inputs.items()} | outputs)


def test_too_many_bad_rows_stop_the_run_after_quarantine_is_saved(catalog: DataCatalog) -> None:
    missing = [replace(fact, decode_error="missing: no file") for fact in FACTS[:2]]
    catalog["facts"] = MemoryDataset([*missing, *FACTS[2:]])
    with pytest.raises(TooManyBadRows, match=r"image_present: 2 records, such as .*0\.jpg"):
        SequentialRunner().run(create_pipeline(), catalog)
    assert [entry.row for entry in catalog.load("quarantine")] == [0, 1]
    assert catalog.load("validation_result")["bad"] == 2


FEW = SceneSettings(train=4, val=2, test=3, items=2, images=6, classified=2)


def data(root: Path, **changes: Any) -> DataSettings:
    splits = {"train": "train", "val": "val", "test": "test"}
    return DataSettings(**{"root": root, "format": "scenes", "splits": splits, **changes})


def test_scenes_are_rendered_where_the_source_is_looked_for(tmp_path: Path) -> None:
    source = prepare_source(data(tmp_path / "scenes"), FEW)
    files = {name: [f"annotations/captions_{name}.json"] for name in ("train", "val", "test")}
    assert source == {"format": "scenes", "root": str(tmp_path / "scenes"), "splits": files}


def test_another_source_is_left_as_it_is(tmp_path: Path) -> None:
    prepare_source(data(tmp_path), FEW)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    source = prepare_source(
        data(tmp_path, format="coco_captions", splits={"train": "test"}), replace(FEW, test=1)
    )
    assert source["splits"] == {"train": ["annotations/captions_test.json"]}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_world_that_cannot_be_drawn_renders_nothing(tmp_path: Path) -> None:
    unknown = parse(SceneSettings, {"world": {"things": ["unicorn"]}}, "scenes")
    with pytest.raises(SettingsError, match=r"scenes\.world\.things"):
        prepare_source(data(tmp_path / "scenes"), unknown)
    assert not (tmp_path / "scenes").exists()
