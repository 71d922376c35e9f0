"""Folders as people have them: `data.format=auto` finds format, files and columns."""

import io
import json
import shlex
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.tables import write_table

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers import locate
from compo_pipeline.data.readers.auto import identified
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
TEXTS = ["A dog on a red sofa.", "Two cats, one of them asleep.", "A man walks in the rain."]
NUMBER = 60


def data(root: Path, splits: dict[str, str] | None = None, **settings: Any) -> DataSettings:
    given = {"format": "auto", "shares": SHARES, **settings}
    return DataSettings(root, splits=splits or dict.fromkeys(SHARES, "."), **given)


def texts_by_image(found: DataSettings) -> dict[str, list[str]]:
    """Captions by image; every image is there, and in one split."""
    records = list(readers.read(found))
    assert not [each for each in records if isinstance(each, Rejected)]
    captions: dict[str, list[str]] = {}
    splits: dict[str, set[str]] = {}
    for each in records:
        assert isinstance(each, RawCaption) and (found.root / each.image).is_file()
        captions.setdefault(each.image, []).append(each.own[0])
        splits.setdefault(each.image, set()).add(each.split)
        assert {*each.own, *each.further} <= set(TEXTS)
    assert all(len(own) == 1 for own in splits.values())
    return captions


def rows_by_split(found: DataSettings) -> list[int]:
    counts = Counter(each.split for each in readers.read(found) if isinstance(each, RawCaption))
    return [counts[split] for split in SHARES]


def images(root: Path, folder: str = "", number: int = NUMBER) -> list[str]:
    """Paths of images that are written below the root."""
    names = [f"{folder}{n:03}.jpg" for n in range(number)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(root / name)
    return names


def listed(root: Path) -> Any:
    return [{"image": name, "caption": TEXTS[0], "id": name} for name in images(root, "im/")]


def of_several(root: Path) -> Any:
    """As FuseCap and coco_karpathy_val.json write them."""
    return [{"image": name, "caption": TEXTS[:2], "image_id": name} for name in images(root)]


def held(root: Path) -> Any:
    return {"version": 1, "licenses": [], "data": listed(root)}


def by_name(root: Path) -> Any:
    return dict.fromkeys(images(root), TEXTS[0])


def objects_by_name(root: Path) -> Any:
    return {name: {"caption": TEXTS[0], "tags": "dog"} for name in images(root)}


def coco(root: Path) -> Any:
    entries = [{"id": n, "file_name": name} for n, name in enumerate(images(root))]
    rows = [
        {"id": 3 * n + k, "image_id": n, "caption": text}
        for n in range(NUMBER)
        for k, text in enumerate(TEXTS)
    ]
    return {"info": {}, "images": entries, "annotations": rows}


@pytest.mark.parametrize(
    ("make", "number"),
    [(listed, 1), (of_several, 2), (held, 1), (by_name, 1), (objects_by_name, 1), (coco, 3)],
)
def test_json_that_is_or_holds_a_list(
    tmp_path: Path, make: Callable[[Path], Any], number: int
) -> None:
    (tmp_path / "anything.json").write_text(json.dumps(make(tmp_path)))
    found = texts_by_image(data(tmp_path))
    assert len(found) == NUMBER and all(own == TEXTS[:number] for own in found.values())


def test_json_of_splits(tmp_path: Path) -> None:
    rows = listed(tmp_path)
    content = {"train": rows[:40], "validation": rows[40:50], "test": rows[50:]}
    (tmp_path / "captions.json").write_text(json.dumps(content))
    assert rows_by_split(data(tmp_path)) == [40, 10, 10]


def test_json_that_holds_no_records(tmp_path: Path) -> None:
    images(tmp_path)
    (tmp_path / "captions.json").write_text('{"name": "mine", "sizes": {"a": 1}}')
    for splits in (None, dict.fromkeys(SHARES, "captions.json")):
        with pytest.raises(SourceError, match=r"expected a (table|list of objects)"):
            locate(data(tmp_path, splits))
    broken = '[{"image": "a.jpg", "caption": "A dog."}, 5, {"caption": ["A cat.", "It."]}]'
    (tmp_path / "captions.json").write_text(broken)
    good, *bad = readers.read(data(tmp_path, {"train": "captions.json"}))
    assert isinstance(good, RawCaption) and len(bad) == 2
    assert ["entry 2" in bad[0].detail, "nothing in image" in bad[1].detail] == [True, True]  # type: ignore[union-attr]


def test_karpathys_splits_of_coco_train(tmp_path: Path) -> None:
    names = [Path(name).name for name in images(tmp_path, "val2014/")]
    splits = ["train"] * 30 + ["restval"] * 10 + ["val"] * 10 + ["test"] * 10
    entries = [
        {"filepath": "val2014", "filename": name, "sentids": [0, 1], "imgid": n, "split": split}
        | {"sentences": [{"tokens": [], "raw": text, "imgid": n} for text in TEXTS]}
        for n, (name, split) in enumerate(zip(names, splits, strict=True))
    ]
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": entries, "dataset": "coco"}))
    found = texts_by_image(data(tmp_path))
    assert list(found.values()) == [TEXTS] * NUMBER
    assert rows_by_split(data(tmp_path)) == [120, 30, 30]


@pytest.mark.parametrize("ending", [".txt", ".caption", ".json"])
@pytest.mark.parametrize("chosen", ["auto", "folder"])
def test_captions_beside_images(tmp_path: Path, ending: str, chosen: str) -> None:
    for name in images(tmp_path, "10_beach/"):
        text = json.dumps({"caption": TEXTS[0]}) if ending == ".json" else f"{TEXTS[0]}\n"
        (tmp_path / name).with_suffix(ending).write_text(text)
        (tmp_path / name).with_name(f"._{Path(name).stem}{ending}").write_text("litter")
    found = texts_by_image(data(tmp_path, format=chosen))
    assert list(found.values()) == [TEXTS[:1]] * NUMBER
    annotations = locate(data(tmp_path))["splits"]["train"]
    assert len(annotations) == NUMBER, "the hash of the data covers the captions"


def test_folders_named_after_splits(tmp_path: Path) -> None:
    for split, number in {"train": 20, "valid": 5, "test": 5}.items():
        for name in images(tmp_path, f"images/{split}/{split}/", number):
            (tmp_path / name).with_suffix(".txt").write_text(TEXTS[0])
    (tmp_path / "classes.json").write_text('{"classes": ["dog", "cat"]}')
    assert len(texts_by_image(data(tmp_path))) == 30
    assert rows_by_split(data(tmp_path)) == [20, 5, 5]


def test_images_without_a_caption_among_others_are_told(tmp_path: Path) -> None:
    names = images(tmp_path)
    for name, text in zip(names, [*TEXTS, "", "\xff"] * 11, strict=False):
        (tmp_path / name).with_suffix(".txt").write_bytes(text.encode("latin-1"))
    records = list(readers.read(data(tmp_path)))
    rules = Counter(each.rule for each in records if isinstance(each, Rejected))
    assert len(records) == NUMBER and rules == {"not_captioned": 16, "unparseable": 11}
    described = list(readers.read(data(tmp_path, captioned=False)))
    assert Counter(each.own == ("",) for each in described if isinstance(each, RawCaption)) == {
        True: 16,
        False: 33,
    }


def test_a_caption_beside_an_image_may_not_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    first, second, *_ = images(root)
    (root / second).with_suffix(".txt").write_text(TEXTS[0])
    (tmp_path / "secret.txt").write_text("A secret.")
    (root / first).with_suffix(".txt").symlink_to(tmp_path / "secret.txt")
    records = list(readers.read(data(root, {"train": "."}, shares={})))
    assert "A secret." not in [each.own[0] for each in records if isinstance(each, RawCaption)]
    assert "leads out of" in next(each.detail for each in records if isinstance(each, Rejected))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_hubs_imagefolder(tmp_path: Path, ending: str) -> None:
    for split, number in {"train": 20, "validation": 5, "test": 5}.items():
        names = [Path(name).name for name in images(tmp_path, f"{split}/", number)]
        rows = [{"file_name": name, "text": TEXTS[0]} for name in names]
        write_table(tmp_path / split / f"metadata.{ending}", rows)
    assert len(texts_by_image(data(tmp_path))) == 30
    assert rows_by_split(data(tmp_path)) == [20, 5, 5]


@pytest.mark.parametrize(
    ("image", "caption"),
    [
        ("filepath", "title"),
        ("file_name", "text"),
        ("Image Name", "Description"),
        ("image_path", "alt"),
        ("Bild", "Text zum Bild"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_columns_are_guessed_by_name_and_content(
    tmp_path: Path, image: str, caption: str, turned: bool
) -> None:
    """Whatever their order, beside a pandas index; without `auto` the hint names the same."""
    names = images(tmp_path, "im/")
    columns = {caption: TEXTS[1], image: ""} if turned else {image: "", caption: TEXTS[1]}
    rows = [{"": n, **columns, image: name, "n": n} for n, name in enumerate(names)]
    write_table(tmp_path / "train.csv", rows)
    assert texts_by_image(data(tmp_path)) == {name: [TEXTS[1]] for name in names}
    table = data(tmp_path, {"train": "train.csv"}, format="table")
    with pytest.raises(SourceError) as raised:
        list(readers.read(table))
    _, given = shlex.split(raised.value.message.partition("such as by")[2])
    named = dict(each.split("=") for each in given.split(","))
    assert named == {"data.columns.image": image, "data.columns.caption": caption}


def test_columns_that_cannot_be_guessed_are_left_open(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{"": n, "a": n, "b": "x"} for n in range(5)])
    with pytest.raises(SourceError, match=r"columns\.image=<.*>,data\.columns\.caption=<.*>"):
        list(readers.read(data(tmp_path)))


def test_two_columns_of_captions_are_not_chosen_between(tmp_path: Path) -> None:
    rows = [{"file": name, "title": "A dog.", "text": TEXTS[0]} for name in images(tmp_path)]
    write_table(tmp_path / "t.csv", rows)
    with pytest.raises(SourceError, match=r"no column image, caption .*image=file,.*caption=text"):
        list(readers.read(data(tmp_path)))
    chosen = data(tmp_path, columns=Columns(caption="text"))
    assert len(texts_by_image(chosen)) == NUMBER


def test_files_named_after_splits(tmp_path: Path) -> None:
    """A split without a file is divided off the training file."""
    names = images(tmp_path)
    for split, part in {"Train": names[:40], "test": names[40:]}.items():
        rows = [{"image": name, "caption": TEXTS[0]} for name in part]
        write_table(tmp_path / f"{split}.csv", rows)
    assert len(texts_by_image(data(tmp_path))) == NUMBER
    assert rows_by_split(data(tmp_path))[-1] == 20
    named = {"train": "Train.csv", "val": ".", "test": "test.csv"}
    assert texts_by_image(data(tmp_path, named)) == texts_by_image(data(tmp_path))


def test_tars_and_parquet_files_with_images(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG")
    for split in ("train", "val"):
        (tmp_path / "tars").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "tars" / f"{split}-000.tar", "w") as tar:
            for n in range(20):
                for ending, value in ((".png", content.getvalue()), (".txt", TEXTS[0].encode())):
                    entry = tarfile.TarInfo(f"{n:03}{ending}")
                    entry.size = len(value)
                    tar.addfile(entry, io.BytesIO(value))
    assert identified(data(tmp_path)).format == "webdataset"
    counts = Counter(each.split for each in readers.read(data(tmp_path)))
    assert counts["val"] == 20 and counts["train"] + counts["test"] == 20 and len(counts) == 3
    rows = [{"image": {"bytes": content.getvalue()}, "text": TEXTS[0]}] * 10
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"train-0000{part}-of-00002.parquet")
    found = identified(data(folder.parent))
    assert (found.format, found.columns.caption) == ("image_parquet", "text")
    assert len(list(readers.read(data(folder.parent)))) == 20


@pytest.mark.parametrize("second", ["captions.jsonl", "metadata.csv", "000.txt", "0.tar"])
def test_two_that_fit_are_both_named(tmp_path: Path, second: str) -> None:
    rows = [{"image": name, "caption": TEXTS[0]} for name in images(tmp_path)]
    write_table(tmp_path / "captions.csv", rows)
    if second.endswith(("txt", "tar")):
        (tmp_path / second).write_text("A dog.")
    else:
        write_table(tmp_path / second, rows)
    with pytest.raises(SourceError, match=r"captions\.csv") as raised:
        locate(data(tmp_path))
    assert second.replace(".txt", ".jpg") in raised.value.message
    named = data(tmp_path, dict.fromkeys(SHARES, "captions.csv"))
    assert len(texts_by_image(named)) == NUMBER


@pytest.fixture
def coco_folder(tmp_path: Path) -> Iterator[Path]:
    content = coco(tmp_path / "train2017")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "captions_train2017.json").write_text(json.dumps(content))
    yield tmp_path


@pytest.mark.parametrize("chosen", ["auto", "coco_captions"])
def test_shares_divide_coco(coco_folder: Path, chosen: str) -> None:
    named = dict.fromkeys(SHARES, "train2017")
    found = texts_by_image(data(coco_folder, named, format=chosen))
    assert found == texts_by_image(data(coco_folder)) and len(found) == NUMBER
    with pytest.raises(
        SourceError, match=r"'train2017' serves .*data\.shares has none of val, test"
    ):
        list(readers.read(data(coco_folder, named, format=chosen, shares={"train": 1.0})))


def test_usual_names_of_splits(tmp_path: Path) -> None:
    rows = [{"image": name, "caption": TEXTS[0]} for name in images(tmp_path)]
    given = ["Train", "training", "RESTVAL", "validation", " valid", "dev", "Test", "testing"]
    for row, split in zip(rows, given, strict=False):
        row["split"] = split
    write_table(tmp_path / "t.csv", rows[: len(given)])
    records = list(readers.read(data(tmp_path)))
    assert [each.split for each in records if isinstance(each, RawCaption)] == [
        *["train"] * 3,
        *["val"] * 3,
        *["test"] * 2,
    ]
    left = list(readers.read(data(tmp_path, {"train": "t.csv", "test": "t.csv"})))
    rules = Counter(each.rule for each in left if isinstance(each, Rejected))
    assert rules == {"other_split": 3}, "not bad: data.splits.val=null leaves them out"
