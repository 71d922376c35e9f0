"""Tables of texts that others published, joined to caption rows."""

import ast
import csv
import io
import json
import logging
import random
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.tables import write_table

from compo_pipeline.core.records import Annotation, Caption
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.data.annotations import Annotations, AnnotationSettings, read

PROJECT = Path(__file__).parents[2]
KEY = "views.from_table"
TEXTS = (
    "A red cat sits on a mat.",
    "Two dogs run in the park",
    "A man's hat lies on a bench.",
    "The bus stops here.",
)
NEGATIVES = (
    ["A mat sits on a red cat .", "A red mat sits on a cat ."],
    ["Two parks run in the dog"],
    ["A bench 's hat lies on a man ."],
    ["The here stops bus ."],
)
Read = Callable[..., list[Annotation]]


def row(number: int, *sentences: str, split: str = "train") -> Caption:
    """A caption row as COCO's reader makes it."""
    image = f"train2014/COCO_train2014_{number:012d}.jpg"
    return Caption(
        f"{split}-{number}", f"{split}-{image}", image, 4, 3, sentences, "coco_captions", split
    )


ROWS = [row(number, text) for number, text in enumerate(TEXTS, start=1)]


def read_table(
    file: Path, rows: Sequence[Caption] = ROWS, sentences: int | None = 1, **given: Any
) -> list[Annotation]:
    """All that a table says, of all that it has."""
    settings = parse(AnnotationSettings, {"file": str(file), **given}, KEY)
    return list(read(settings, frozenset(settings.read.contents), rows, KEY, sentences))


def neg_clip(file: Path, near: Sequence[Sequence[int]] = ((1, 2), (0,), (3,), (2, 0))) -> Path:
    """NegCLIP's file, as pandas writes it: an index without a name, lists as Python prints them."""
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, delimiter="\t", lineterminator="\n")
        writer.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
        for number, (text, negatives, others) in enumerate(
            zip(TEXTS, NEGATIVES, near, strict=True)
        ):
            image = f"coco/{ROWS[number].image}"
            writer.writerow([number, text, image, str(negatives), str(list(others))])
    return file


def test_neg_clips_file_is_read_as_its_loader_reads_it(tmp_path: Path) -> None:
    """`CsvDataset` of vinid/neg_clip: pandas with `ast.literal_eval` for both lists."""
    file = neg_clip(tmp_path / "train_neg_clip.tsv")
    found = read_table(file, layout="neg_clip")
    with file.open(newline="") as opened:
        records = list(csv.DictReader(opened, delimiter="\t"))
    assert [each.sample_id for each in found] == [one.sample_id for one in ROWS]
    for each, record in zip(found, records, strict=True):
        assert list(each.negatives) == ast.literal_eval(record["neg_caption"])
        near = [ROWS[place].sample_id for place in ast.literal_eval(record["neg_image"])]
        assert list(each.neighbours) == near


def sparcl(file: Path, captions: int = 2) -> Path:
    """SPARCL's file: tabs, an image a line, by place; names of columns that mean nothing."""
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, delimiter="\t", lineterminator="\n")
        names = [f"{name}_{place}" for place in range(captions) for name in ("id", "c", "n", "p")]
        writer.writerow(["image_id", *names])
        for image, texts in ((1, TEXTS[:2]), (2, TEXTS[2:])):
            fields = [
                [1000 * image + place, text, f"not {text}", f"so {text}"]
                for place, text in enumerate(texts)
            ]
            writer.writerow([image, *(value for each in fields for value in each)])
    return file


def of_images() -> list[Caption]:
    """A row for each caption of two images, its image's others after its own."""
    pairs = [(1, 0, 1), (1, 1, 0), (2, 2, 3), (2, 3, 2)]
    rows = []
    for place, (image, own, other) in enumerate(pairs):
        made = row(image, TEXTS[own], TEXTS[other])
        rows.append(Caption(f"train-{place}", *list(asdict(made).values())[1:]))
    return rows


def test_sparcls_file_is_read_by_the_places_of_its_columns(tmp_path: Path) -> None:
    """`COCO_neg_pos` of lihaoxin05/SPARCL, with the columns that its scripts/run.sh names."""
    file, rows = sparcl(tmp_path / "captions.csv"), of_images()
    found = {each.sample_id: each for each in read_table(file, rows, layout="sparcl")}
    with file.open() as opened:
        header, *lines = csv.reader(opened, delimiter="\t")
    texts, negative, positive = range(2, len(header), 4), 1, 2  # places after that of the text
    for line in lines:
        for column in texts:
            (own,) = (
                one
                for one in rows
                if one.sentences[0] == line[column]
                and one.image.endswith(f"{int(line[0]):012d}.jpg")
            )
            name = f"{int(line[0]):012d}_{int(line[column - 1]):06d}.jpg"
            each = found[own.sample_id]
            assert each.negatives == (line[column + negative],)
            assert each.positives == (line[column + positive],)
            assert each.negative_images == (f"synthetic_negative/{name}",)
            assert each.positive_images == (f"synthetic_positive/{name}",)
    assert len(found) == len(rows)


def test_further_sentences_are_looked_for_where_they_are_asked_for(tmp_path: Path) -> None:
    file, rows = sparcl(tmp_path / "captions.csv"), of_images()
    found = read_table(file, rows, None, layout="sparcl")
    places = {(each.sample_id, each.sentence): each.negatives[0] for each in found}
    assert places == {
        (one.sample_id, place): f"not {text}"
        for one in rows
        for place, text in enumerate(one.sentences)
    }


RECORDS = [
    {
        "key": f"{number}",
        "text": f" {text.upper()}",
        "no": [f"not {text}"],
        "image": f"x/{one.image}",
    }
    for number, (text, one) in enumerate(zip(TEXTS, ROWS, strict=True), start=1)
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    "keys",
    [
        {"sample_id": "key"},
        {"image": "key"},
        {"image": "image"},
        {"caption": "text"},
        {"image": "image", "caption": "text"},
    ],
)
def test_records_are_joined_by_what_is_named(
    tmp_path: Path, suffix: str, keys: dict[str, str]
) -> None:
    file = write_table(tmp_path / f"table.{suffix}", RECORDS[::-1])
    found = read_table(file, columns={**keys, "negatives": ["no"]})
    assert [each.sample_id for each in found] == [one.sample_id for one in ROWS[::-1]]
    assert [each.negatives for each in found] == [(f"not {text}",) for text in TEXTS[::-1]]
    assert [each.record for each in found] == list(range(4))


def test_a_caption_alone_is_not_enough_where_the_image_is_named_too(tmp_path: Path) -> None:
    records = [{**one, "image": RECORDS[0]["image"]} for one in RECORDS]
    file = write_table(tmp_path / "table.jsonl", records)
    columns = {"image": "image", "caption": "text", "negatives": ["no"]}
    found = read_table(file, columns=columns, least_matched=0)
    assert [each.sample_id for each in found] == [ROWS[0].sample_id]


@pytest.mark.parametrize("layout", ["columns", "sparcl"])
def test_endless_numbers_are_of_no_row(tmp_path: Path, layout: str) -> None:
    """Python converts no text of more than 4,300 digits."""
    file, long = sparcl(tmp_path / "table.csv"), "1" * 5_000
    given: dict[str, Any] = {"layout": "sparcl"}
    rows = of_images()
    if layout == "columns":
        write_table(file, [{"image": name, "no": "x"} for name in ("1", "0002", "3", "4", long)])
        given, rows = {"columns": {"image": "image", "negatives": ["no"]}}, ROWS
    else:
        first, *lines = file.read_text().splitlines()
        file.write_text("\n".join([first, *lines, lines[0].replace("1\t", f"{long}\t", 1)]))
    found = read_table(file, rows, **given)
    assert {each.sample_id for each in found} == {one.sample_id for one in rows}


def test_images_that_end_alike_are_refused(tmp_path: Path) -> None:
    rows = [
        Caption(folder, folder, f"{folder}/1.jpg", 4, 3, (TEXTS[0],), "table", "train")
        for folder in ("a", "b")
    ]
    file = write_table(tmp_path / "table.jsonl", [{"image": "1.jpg", "no": ["not"]}])
    columns = {"image": "image", "negatives": ["no"]}
    with pytest.raises(SettingsError, match=r"from_table.file: .* the images a/1.jpg and b/1.jpg"):
        read_table(file, rows, columns=columns)
    assert read_table(
        write_table(tmp_path / "longer.jsonl", [{"image": "a/1.jpg", "no": ["not"]}]),
        rows,
        columns=columns,
    )[0].sample_id == "a"  # fmt: skip


def test_too_few_matches_are_shown(tmp_path: Path) -> None:
    file = write_table(tmp_path / "table.jsonl", [RECORDS[0], {**RECORDS[1], "text": "Else."}])
    columns = {"caption": "text", "negatives": ["no"]}
    with pytest.raises(SettingsError) as error:
        read_table(file, columns=columns)
    message = error.value.message
    assert "\n" not in message and message.startswith(f"{KEY}: joined by caption, 1 of 4 rows")
    assert "2 records" in message and "50%" in message and f"{KEY}.least_matched" in message
    assert all(text in message for text in TEXTS[1:]) and RECORDS[0]["text"].strip() in message
    assert len(read_table(file, columns=columns, least_matched=0.25)) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"columns": {"caption": "title", "negatives": ["no"]}},
            r"columns.caption: .* no column title \(it has 'key, text, no, image'\)",
        ),
        ({"layout": "sparcl"}, "file: .* is not laid out as SPARCL's"),
        ({"file": "no/such.csv", "layout": "neg_clip"}, "file: there is no file no/such.csv"),
        ({"file": "table.pkl", "layout": "neg_clip"}, "file: table.pkl is no table; expected .csv"),
        ({"columns": {"negatives": ["no"]}}, "columns: expected one of sample_id, image, caption"),
        (
            {"layout": "sparcl", "columns": {"caption": "text"}},
            "columns: the layout sparcl has columns of its own, got caption",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, given: dict[str, Any], expected: str) -> None:
    file = write_table(tmp_path / "table.csv", RECORDS)
    with pytest.raises(SettingsError, match=rf"^{KEY}\.{expected}"):
        read_table(**{"file": file, **given})


def test_what_a_record_lacks_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records: list[dict[str, Any]] = [
        {"text": TEXTS[0], "no": "['cut", "images": "['a.jpg']"},
        {"text": TEXTS[1], "no": "['cut']x']", "images": ""},
        {"text": TEXTS[2], "no": "['one', 'two', '']", "images": "['1.jpg', '2.jpg', '3.jpg']"},
        {"text": TEXTS[3], "no": "['one', 'two']", "images": "['1.jpg']"},
        {"text": "", "no": "x", "images": ""},
        {"text": "Of no row.", "no": "x", "images": ""},
    ]
    file = write_table(tmp_path / "table.csv", records)
    columns = {"caption": "text", "negatives": ["no"], "negative_images": "images"}
    with caplog.at_level(logging.INFO):
        one, cut, pair, uneven = read_table(file, columns=columns)
    assert one.negatives == ("['cut",) and one.negative_images == ("a.jpg",)  # no list, a text
    assert cut.negatives == ()
    assert (pair.negatives, pair.negative_images) == (("one", "two"), ("1.jpg", "2.jpg"))
    assert (uneven.negatives, uneven.negative_images) == (("one", "two"), ("", ""))
    told = " ".join(caplog.messages)
    assert "4 of 4 rows have a record; of 6 records 1 are of no row" in told
    for count in (
        "1 records that cannot be read or have no key",
        "1 lists that cannot be read",
        "1 records whose negative_images are not as many as their negatives",
        "records without a negative",
    ):
        assert count in told


def test_neighbours_that_do_not_train_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = neg_clip(tmp_path / "table.tsv", near=[(1, 3), (0, 7), (3,), (2, 0)])
    found = read_table(file, ROWS[:3], layout="neg_clip")
    assert [each.neighbours for each in found] == [("train-2",), ("train-1",), ()]
    told = " ".join(caplog.messages)
    assert "2 neighbours that are of no row" in told
    assert "1 neighbours that are no number of a record" in told


def test_a_list_that_is_no_list_of_texts_is_no_bomb(tmp_path: Path) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    records = [{"text": text, "no": deep} for text in TEXTS]
    file = write_table(tmp_path / "table.csv", records)
    found = read_table(file, columns={"caption": "text", "negatives": ["no"]})
    assert [each.negatives for each in found] == [()] * 4


def snippet(number: int) -> str:
    """A program of the page about published files."""
    page = (PROJECT / "docs" / "how-to" / "negatives-of-others.md").read_text()
    programs: list[str] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 3
    return programs[number]


def test_deglas_list_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`COM_COCO` of xiaoxing2001/DeGLA takes the first four of `enhanced`, in their order."""
    monkeypatch.chdir(tmp_path)
    records = [
        {"image_id": number, "original": text, "enhanced": [f"{k} not {text}" for k in range(4)]}
        for number, text in enumerate(TEXTS, start=1)
    ]
    Path("DeGLA.json").write_text(json.dumps(records))
    exec(snippet(0), {})
    columns = {"image": "image_id", "caption": "original", "negatives": ["enhanced"]}
    settings = parse(
        AnnotationSettings, {"file": "degla.jsonl", "drawn": 4, "columns": columns}, KEY
    )
    found = read(settings, frozenset({"negatives"}), ROWS, KEY)
    others = Annotations.from_rows(found, settings, frozenset({"negatives"}))
    for row_, record in zip(ROWS, records, strict=True):
        drawn = others.negatives(row_.sample_id, random.Random(0))
        assert [one and one[0] for one in drawn] == record["enhanced"]


def test_cc_neg_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FineTuningDataset` of jaisidhsingh/CoN-CLIP: caption, and negative without commas."""
    monkeypatch.chdir(tmp_path)
    content = {
        "image_paths": [f"/workspace/{one.image}" for one in ROWS],
        "annotations": [
            {"json": {"caption": text}, "sop_data": {"negative-prompt": f"not, {text}"}}
            for text in TEXTS
        ],
    }
    torch.save(content, "ccneg_preprocessed.pt")
    exec(snippet(1), {})
    columns = {"image": "image", "caption": "caption", "negatives": ["negative"]}
    found = read_table(Path("ccneg.jsonl"), columns=columns)
    assert [each.negatives for each in found] == [(f"not {text}",) for text in TEXTS]


def test_triplet_data_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of the members that `TripletClipData` of tripletclip/TripletCLIP reads."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open("shard-0.tar", "w") as tar:
        for number, text in enumerate(TEXTS):
            parts = {
                "image": b"1",
                "neg_image": b"2",
                "caption": text,
                "neg_caption": f"not {text}",
            }
            for ending, content in parts.items():
                data = content.encode() if isinstance(content, str) else content
                member = tarfile.TarInfo(f"{number:06d}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    exec(snippet(2), {})
    rows = [
        Caption(f"{n}", f"{n}", f"shard-0.tar/{n:06d}.image", 1, 1, (text,), "table", "train")
        for n, text in enumerate(TEXTS)
    ]
    columns = {
        "image": "image",
        "caption": "caption",
        "negatives": ["neg_caption"],
        "negative_images": "neg_image",
    }
    found = read_table(Path("triplets.jsonl"), rows, columns=columns)
    assert [each.negatives for each in found] == [(f"not {text}",) for text in TEXTS]
    names = [(f"shard-0.tar/{number:06d}.neg_image",) for number in range(len(TEXTS))]
    assert [each.negative_images for each in found] == names
