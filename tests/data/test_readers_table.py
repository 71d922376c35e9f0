"""Tables of captions: CSV, TSV, JSON lines, parquet, and the two published ones."""

import csv
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.data.tables import write_table

from compo_pipeline.core.records import Rejected
from compo_pipeline.data import readers
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import Columns, DataSettings

ROWS = [
    {"image": "a.jpg", "caption": 'A dog, on a "sofa".\nIt sleeps.', "key": "000010002"},
    {"image": "b/c.jpg", "caption": "猫 🐈 on a mat.", "key": "000010003"},
]


def read(root: Path, source: str, **settings: Any) -> list[RawCaption | Rejected]:
    data = DataSettings(root, settings.pop("format", "table"), {"train": source}, **settings)
    return list(readers.read(data))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_the_same_rows_in_every_format(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"t.{suffix}", ROWS)
    rows = read(tmp_path, f"t.{suffix}", images="images")
    assert rows == [
        RawCaption(f"train-{number}", f"train-{image}", image, (row["caption"],), (), "train")
        for number, row in enumerate(ROWS)
        for image in (f"images/{row['image']}",)
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_named_by_configuration(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"t.{suffix}", ROWS)
    columns = Columns(id="key", image="{key:.5}/{key}.jpg", caption="image")
    first, _ = read(tmp_path, f"t.{suffix}", columns=columns)
    assert first.sample_id == "train-000010002"
    assert first.image == "00001/000010002.jpg"
    assert first.own == ("a.jpg",)


def test_files_of_a_pattern_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_table(tmp_path / "t-1.jsonl", ROWS[1:])
    write_table(tmp_path / "t-0.parquet", ROWS[:1])
    rows = read(tmp_path, "t-*")
    assert [(row.sample_id, row.image) for row in rows] == [
        ("train-0", "a.jpg"),
        ("train-1", "b/c.jpg"),
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_sentences_in_a_list(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"t.{suffix}", [{"image": "a.jpg", "s": ["A dog.", "It sleeps."]}])
    (row,) = read(tmp_path, f"t.{suffix}", columns=Columns(sentences="s"))
    assert row.own == ("A dog.", "It sleeps.")


def test_broken_csv_rows_are_kept_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        b"\xef\xbb\xbfimage,caption\na.jpg,A dog.\nb.jpg\n\nc.jpg,\xff\xfe\nd.jpg,A cat.,more\n"
        b",A bird.\ne.jpg," + b"x" * 200_000 + b"\nf.jpg,\n"
    )
    rows = read(tmp_path, "t.csv")
    details = [row.detail if isinstance(row, Rejected) else row.own[0] for row in rows]
    assert details[0] == "A dog."
    assert "1 fields, expected 2" in details[1]
    assert "not valid UTF-8" in details[2]
    assert "3 fields, expected 2" in details[3]
    assert "the image's name is ''" in details[4]
    assert "field larger than field limit" in details[5]
    assert details[6] == "", "an empty caption is a row; validation judges it"


STRAY = [
    ('a.jpg,A dog\nb.jpg,"A cat\nc.jpg,A bird\n', ["A dog", "A cat", "A bird"]),
    ('a.jpg,"12 inch\nb.jpg,A cat\nc.jpg,"5 inch\n', ["12 inch", "A cat", "5 inch"]),
    ('a.jpg,"12 inch\nb.jpg,A cat\nc.jpg,nail of 5"\n', ["12 inch", "A cat", 'nail of 5"']),
    ('1,"12 inch\n2,"A cat, red"\n3,nail of 5"\n', ["12 inch", "A cat, red", 'nail of 5"']),
    ('"a.jpg","A dog\n"b.jpg","A cat"\n', ["A dog", "A cat"]),
]


@pytest.mark.parametrize(("lines", "captions"), STRAY)
def test_a_quote_that_is_not_closed_takes_no_row_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: str, captions: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(f"image,caption\n{lines}")
    rows = read(tmp_path, "t.csv")
    assert [row.own[0] for row in rows if isinstance(row, RawCaption)] == captions
    first = next(n for n, line in enumerate(lines.split("\n"), start=2) if line.count('"') % 2)
    assert f"t.csv, line {first}: a quote opens" in caplog.text


@pytest.mark.parametrize(("lines", "captions"), STRAY)
def test_a_file_with_such_a_quote_and_texts_of_several_lines_is_refused(
    tmp_path: Path, lines: str, captions: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(f'image,caption\nz.jpg,"A cow\nis red"\n{lines}')
    with pytest.raises(SourceError, match=r"t\.csv, line \d+.*: a quote opens .* sed -i '\d+s/"):
        read(tmp_path, "t.csv")


def test_a_quoted_text_of_many_lines_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "A dog.\n" * 9
    write_table(
        tmp_path / "t.csv",
        [{"image": "a.jpg", "caption": text}, {"image": "b.jpg", "caption": "x"}],
    )
    first, second = read(tmp_path, "t.csv")
    assert (first.own, second.own) == ((text,), ("x",))
    assert "t.csv, line 2: a quoted text has more than 5 lines" in caplog.text


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("image,caption", "1.jpg,A\ndog\n2.jpg,A cat.\nIt is red, and big\n3.jpg,a\nb\nc d\n"),
        ("caption,image", "A\ndog,1.jpg\nA cat.\nIt is red, and big,2.jpg\na\nb,3.jpg\n"),
        ("image,caption,split", "1.jpg,A\ndog,train\n2.jpg,A\ncat,train\n3.jpg,A\ncow,train\n"),
        ("image,caption", "1,A\ndog\n2,A cat.\nIt is red\n3,A cow\nis red\n"),
    ],
)
def test_no_half_of_a_caption_is_used(tmp_path: Path, header: str, lines: str) -> None:
    """Of three captions with line breaks outside of quotes, between whole ones."""
    keys = [key.removesuffix(".jpg") for key in ("10.jpg", "11.jpg")] if "1," in lines[:2] else None
    names = keys or ["10.jpg", "11.jpg"]
    values = {"caption": "A whole one", "split": "train"}
    whole = [
        ",".join({**values, "image": name}[key] for key in header.split(",")) for name in names
    ]
    (tmp_path / "t.csv").write_text(f"{header}\n{whole[0]}\n{lines}{whole[1]}\n")
    rows = read(tmp_path, "t.csv")
    used = [row for row in rows if isinstance(row, RawCaption) and row.image[0].isdigit()]
    assert [row.image for row in used] == names
    assert len(rows) == lines.count("\n") + 2


def test_a_short_row_that_names_its_image_halves_no_other(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,caption\na.jpg,A dog\nb.jpg\nc.jpg,A cat\n")
    assert [isinstance(row, RawCaption) for row in read(tmp_path, "t.csv")] == [True, False, True]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_of_file_names_are_found_in_either_form(tmp_path: Path, form: Any) -> None:
    """macOS writes them decomposed, into folders and archives."""
    other = "NFD" if form == "NFC" else "NFC"
    name, there = (unicodedata.normalize(each, "café.jpg") for each in (form, other))
    (tmp_path / there).write_bytes(b"image")
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        tar.add(tmp_path / there, there)
    write_table(
        tmp_path / "t.csv", [{"image": each, "caption": "x"} for each in (name, f"0.tar/{name}")]
    )
    rows = read(tmp_path, "t.csv")
    assert [(row.image, getattr(row, "image_id", "")) for row in rows] == [
        (there, f"train-{there}"),
        (f"0.tar/{there}", f"train-0.tar/{there}"),
    ]


def test_absolute_paths_below_the_root_are_relative_ones(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "images").mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    names = [str(root / "images" / "a.jpg"), str(tmp_path / "link" / "a.jpg"), "/etc/passwd"]
    write_table(root / "t.csv", [{"image": name, "caption": "x"} for name in names])
    given = [row.image for row in read(tmp_path / "link", "t.csv", images="images")]
    assert given == ["images/a.jpg", "a.jpg", "/etc/passwd"]


def test_broken_json_lines_are_kept_with_the_reason(tmp_path: Path) -> None:
    lines = [
        '{"image": "a.jpg", "caption": "A dog."}',
        "{",
        "[1]",
        '{"image": "a.jpg"}',
        '{"image": "a.jpg", "caption": 5}',
        '{"image": "a.jpg", "caption": "\\ud800"}',
    ]
    (tmp_path / "t.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    good, *bad = read(tmp_path, "t.jsonl")
    assert isinstance(good, RawCaption)
    reasons = ["line 2", "an object", "nothing in caption", "5 is not a text", "UTF-8", "line 7"]
    for row, reason in zip(bad, reasons, strict=True):
        assert isinstance(row, Rejected) and reason in row.detail


def test_cogvlm_laion(tmp_path: Path) -> None:
    (tmp_path / "cogvlm.csv").write_text(
        "http://x.org/p/one.jpg,A dog on a sofa. It sleeps.\n"
        '/home/me/two.png,"A cat, grey","It looks out",\n'
        "http://x.org/three.jpg\n"
        "http://x.org/,No name.\n"
        "four.jpg,\n",
        "utf-8",
    )
    rows = read(tmp_path, "cogvlm.csv", format="cogvlm_laion", images="images")
    assert [row.image for row in rows[:2]] == ["images/one.jpg", "images/two.png"]
    assert [row.own for row in rows if isinstance(row, RawCaption)] == [
        ("A dog on a sofa. It sleeps.",),
        ("A cat, grey", "It looks out"),
        ("",),
    ]
    assert len(rows) == 5


SHARED = {"train": "t.*", "val": "t.*", "test": "t.*"}
SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}


def divided(root: Path, **settings: Any) -> dict[str, set[str]]:
    """Images by split; every record is of one split."""
    data = DataSettings(root, "table", settings.pop("splits", SHARED), **settings)
    rows = [row for row in readers.read(data) if isinstance(row, RawCaption)]
    assert all(row.sample_id.startswith(f"{row.split}-") for row in rows)
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.split, set()).add(row.image)
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    return found


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_one_file_is_divided_by_image(tmp_path: Path, suffix: str) -> None:
    rows = [{"image": f"{n // 2}.jpg", "caption": f"Caption {n}."} for n in range(800)]
    write_table(tmp_path / f"t.{suffix}", rows)
    found = divided(tmp_path, shares=SHARES)
    assert {split: round(len(images) / 400, 1) for split, images in found.items()} == SHARES
    write_table(
        tmp_path / f"t.{suffix}", [*rows, {"image": "new.jpg", "caption": "One more."}][::-1]
    )
    more = divided(tmp_path, shares=SHARES)
    assert all(found[split] <= more[split] for split in found), "images keep their split"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_column_says_the_split_where_there_is_one(tmp_path: Path, suffix: str) -> None:
    names = ["train", "test", "val", "train", "holdout"]
    rows = [{**ROWS[0], "image": f"{n}.jpg", "split": name} for n, name in enumerate(names)]
    write_table(tmp_path / f"t.{suffix}", rows)
    expected = {"train": {"0.jpg", "3.jpg"}, "test": {"1.jpg"}, "val": {"2.jpg"}}
    assert divided(tmp_path, shares=SHARES) == expected
    assert divided(tmp_path, columns=Columns(split="split")) == expected
    data = DataSettings(tmp_path, "table", SHARED)
    read_all = list(readers.read(data))
    (bad,) = [row for row in read_all if isinstance(row, Rejected)]
    assert (bad.sample_id, bad.image) == ("train-4", "4.jpg")
    assert bad.detail == "split is 'holdout', expected one of train, val, test"
    assert len(read_all) == len(rows)


def test_a_file_of_a_split_of_its_own_is_not_divided(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{**ROWS[0], "split": "whatever"}])
    assert divided(tmp_path, splits={"train": "t.csv"}) == {"train": {"a.jpg"}}


def test_a_share_that_is_missing_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ROWS)
    with pytest.raises(SourceError, match=r"data\.shares has none of test"):
        divided(tmp_path, shares={"train": 0.9, "val": 0.1})
    with pytest.raises(ValueError, match=r"shares\.train\s.*greater than 0"):
        divided(tmp_path, shares={"train": 0.0})


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_csv_of_another_delimiter_reads_as_one_of_commas(
    tmp_path: Path, delimiter: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**row, "split": split} for row, split in zip(ROWS, ("train", "test"), strict=True)]
    splits = {"train": "t.csv", "test": "t.csv"} if shared else {"train": "t.csv"}
    data = DataSettings(tmp_path, "table", splits)
    write_table(tmp_path / "t.csv", rows)
    expected = list(readers.read(data))
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    with caplog.at_level("INFO"):
        assert list(readers.read(data)) == expected
    named = "semicolons" if delimiter == ";" else "tabs"
    found = [record.message for record in caplog.records if "separated" in record.message]
    assert found == [f"{tmp_path / 't.csv'}: fields are separated by {named}"], (
        "logged once, however often the file is opened"
    )


def test_a_semicolon_in_a_header_of_commas_is_no_delimiter(tmp_path: Path) -> None:
    write_table(
        tmp_path / "t.csv", [{"image": "a.jpg", "caption": "A dog; a cat.", "x;y;z": "1;2;3"}]
    )
    (row,) = read(tmp_path, "t.csv")
    assert isinstance(row, RawCaption) and row.own == ("A dog; a cat.",)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_are_found_in_another_case(tmp_path: Path, suffix: str) -> None:
    rows = [{**row, "split": split} for row, split in zip(ROWS, ("train", "test"), strict=True)]
    data = DataSettings(tmp_path, "table", {"train": f"t.{suffix}", "test": f"t.{suffix}"})
    write_table(tmp_path / f"t.{suffix}", rows)
    expected = list(readers.read(data))
    assert len(expected) == len(ROWS)
    other = [{f" {name.title()}": value for name, value in row.items()} for row in rows]
    write_table(tmp_path / f"t.{suffix}", other)
    assert list(readers.read(data)) == expected


@pytest.mark.parametrize("order", [("image", "caption"), ("caption", "image")])
def test_the_header_that_is_missing_is_told(tmp_path: Path, order: tuple[str, str]) -> None:
    values = [",".join(f'"{row[name]}"' for name in order) for row in (*ROWS[1:], *ROWS[1:])]
    (tmp_path / "t.csv").write_text("\n".join(values), "utf-8")
    with pytest.raises(SourceError, match="its first line is a record") as raised:
        read(tmp_path, "t.csv")
    header = raised.value.message.rpartition(" ")[2]
    (tmp_path / "t.csv").write_text("\n".join([header, *values]), "utf-8")
    row, _ = read(tmp_path, "t.csv")
    assert (row.image, row.own[0]) == (ROWS[1]["image"], ROWS[1]["caption"])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_file_in_another_encoding_is_named_with_the_remedy(
    tmp_path: Path, encoding: str, suffix: str
) -> None:
    path = tmp_path / f"t.{suffix}"
    write_table(path, [{"image": f"{n}.jpg", "caption": "Ein grüner Ball."} for n in range(60)])
    text = path.read_text("utf-8").replace("\\u00fc", "ü")
    path.write_bytes(text.encode(encoding))
    data = DataSettings(
        tmp_path, "table", dict.fromkeys(("train", "val"), path.name), shares=SHARES
    )
    with pytest.raises(SourceError) as raised:
        list(readers.read(data))
    assert "UTF-8" in raised.value.message and "\n" not in raised.value.message
    source = raised.value.message.partition("iconv -f ")[2].split()[0]
    path.write_text(path.read_bytes().decode(source), "utf-8")
    assert len(list(readers.read(data))) == 60


def test_a_split_without_a_record(tmp_path: Path) -> None:
    data = DataSettings(tmp_path, "table", {"train": "t.csv"})
    (tmp_path / "t.csv").write_text("image,caption\n")
    with pytest.raises(SourceError, match=r"splits\.train: .*t\.csv holds no record$"):
        list(readers.read(data))


A, B = (f"coco/train2014/COCO_train2014_{number:012}.jpg" for number in (9, 25))


def read_neg_clip(
    root: Path, rows: list[tuple[str, str]], more: bytes = b""
) -> list[RawCaption | Rejected]:
    """Rows of a file as it is published: an index without a name, and columns of Python lists."""
    with (root / "train_neg_clip.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
        for number, (title, image) in enumerate(rows):
            writer.writerow([number, title, image, repr([f'"{title}" swapped', title]), "[1, 2]"])
    with (root / "train_neg_clip.tsv").open("ab") as file:
        file.write(more)
    return read(root, "train_neg_clip.tsv", format="neg_clip")


def test_captions_of_one_image_share_it_and_are_further_to_each_other(tmp_path: Path) -> None:
    rows = [("A dog's bed.", A), ("Two cats.", B), ('A "dog".\n', A)]
    first, second, third = read_neg_clip(tmp_path, rows)
    assert first == RawCaption(
        "train-0", f"train-{A}", A, ("A dog's bed.",), ('A "dog".\n',), "train"
    )
    assert (second.image_id, second.further) == (f"train-{B}", ())
    assert (third.image_id, third.further) == (f"train-{A}", ("A dog's bed.",))


def test_unusable_rows_of_neg_clip_are_kept_with_the_reason(tmp_path: Path) -> None:
    more = b"2\tcut\n3\t\xff\t" + A.encode() + b"\t[]\t[]\r\n"
    good, nameless, short, garbled = read_neg_clip(tmp_path, [("A dog.", A), ("A cat.", "")], more)
    assert good.further == (), "what cannot be read is no further caption"
    details = [row.detail for row in (nameless, short, garbled) if isinstance(row, Rejected)]
    for detail, reason in zip(details, ["name is ''", "2 fields", "UTF-8"], strict=True):
        assert reason in detail
