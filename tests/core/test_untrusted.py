"""Files that others wrote: every reader and every benchmark meets malformed and hostile ones."""

import csv
import io
import json
import re
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import (
    BENCHMARKS,
    BenchmarkSet,
    BenchmarksSettings,
    RetrievalSettings,
)
from compo_pipeline.core import untrusted
from compo_pipeline.core.files import DamagedFileError
from compo_pipeline.core.records import Rejected, to_table
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import (
    OutsideRoot,
    files_below,
    parse_json,
    path_below,
    read_csv,
    read_json_lines,
    read_lines,
)
from compo_pipeline.data import readers
from compo_pipeline.data.images import decoding
from compo_pipeline.data.readers import READERS
from compo_pipeline.data.readers.record import RawCaption, SourceError
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.serving.requests import REQUESTS, hour_folder, read_requests, write_requests

SECRET = "root:x:0:0:secret"
COCO = ("scenes", "coco_captions")
# Files that each format is read from.
SOURCES = {
    "table": ("rows.jsonl", "rows.csv", "rows.parquet"),
    "cogvlm_laion": ("rows.csv",),
    "neg_clip": ("rows.tsv",),
    "img2dataset": ("rows.parquet",),
    "webdataset": ("rows.tar",),
    "image_parquet": ("rows.parquet",),
    "folder": (),  # has no caption file
    **dict.fromkeys(COCO, ("train",)),
}
FORMATS = [(name, source) for name in READERS for source in SOURCES[name]]
TEXTS = ("caption", "title")
RECORD = {
    "image": "1.jpg",
    **dict.fromkeys(TEXTS, "A red cube is left of a dog."),
    "id": 1,
    "filepath": "1.jpg",
    "url": "http://a/1.jpg",
    "status": "success",
    "error_message": "",
}
VALID = yaml.safe_load(Path(__file__).with_name("benchmark_files.yml").read_text("utf-8"))
FILES: dict[str, str] = {name: next(iter(files)) for name, files in VALID.items()}
ITEMS: dict[str, Any] = {name: files[FILES[name]] for name, files in VALID.items()}
FROM_FILES = [name for name, benchmark in BENCHMARKS.items() if benchmark.load is not None]
FROM_FILES += [name for name in ITEMS if ":" in name]
DEEP = "[" * 100_000
MALFORMED = {
    "list for dict": b'[["a"]]',
    "dict for list": b'{"a": 1}',
    "null": b"null",
    "null record": b'{"7": null}',
    "null in a list": b"[null]",
    "number": b"7",
    "nothing": b"",
    "no items": b"{}",
    "cut": b'{"7": {"filename": "1.jp',
    "latin-1": '{"7": "é"}'.encode("latin-1"),
    "NUL": b"\0" * 10,
    "deep": DEEP.encode(),
    "deep, closed": b"[" * 500 + b"]" * 500,
    "key twice": b'{"7": 1, "7": 2}',
    "image": b"\x89PNG\r\n\x1a\n",
}


def record(**changes: Any) -> dict[str, Any]:
    """A row with the columns of every tabular format; `key` comes first."""
    return {"key": "000000001", **RECORD, **changes}


def source_of(root: Path, name: str, source: str) -> tuple[DataSettings, Path]:
    """Settings of a format, and the caption file that they name."""
    file = root / (f"annotations/captions_{source}.json" if name in COCO else source)
    file.parent.mkdir(parents=True, exist_ok=True)
    return DataSettings(root, name, {"train": source}), file


def content_of(name: str, source: str, rows: list[Any]) -> bytes:
    """Rows as a file of this format holds them."""
    if name in COCO:
        return json.dumps(
            {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": rows}
        ).encode()
    if source.endswith(".jsonl"):
        return "\n".join(json.dumps(row) for row in rows).encode()
    if source.endswith(".json"):
        return json.dumps(rows[0] if rows else None).encode()
    if source.endswith(".parquet"):
        texts = [
            {_encodable(key): _encodable(value) for key, value in row.items()}
            for row in rows
            if isinstance(row, dict)
        ]
        buffer = io.BytesIO()
        table = pa.Table.from_pylist(texts)
        if name == "image_parquet":
            table = table.append_column("pixels", pa.array([b"pixels"] * table.num_rows))
        pq.write_table(table, buffer)
        return buffer.getvalue()
    if source.endswith(".tar"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for number, row in enumerate(rows):
                for ending, content in (("jpg", b"pixels"), ("json", json.dumps(row).encode())):
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, delimiter="\t" if source.endswith(".tsv") else ",")
    tables = [row for row in rows if isinstance(row, dict)] or [record()]
    if name != "cogvlm_laion":
        writer.writerow(tables[0])
    for row in tables:
        writer.writerow(
            [row.get("image"), row.get("caption")] if name == "cogvlm_laion" else row.values()
        )
    return lines.getvalue().encode("utf-8", "surrogatepass")


def _encodable(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def rows_of(name: str) -> list[Any]:
    """Valid rows of a format."""
    return [{"id": 1, "image_id": 1, "caption": "A dog."}] if name in COCO else [record()]


def folder_of(name: str) -> str:
    """The benchmark of a format, after which its folder is named."""
    return name.partition(":")[0]


def benchmark_file(root: Path, name: str, content: Any) -> Path:
    """Write a benchmark's file."""
    file = root / folder_of(name) / FILES[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    if name == "vl_checklist":
        (root / name / "data").mkdir(exist_ok=True)
        named = '[["2.jpg", {"POS": ["a dog"], "NEG": ["a cat"]}]]'
        (root / name / "data" / "a.json").write_text(named)
    if isinstance(content, bytes):
        return _written(file, content)
    text = json.dumps(content)
    if file.suffix in (".jsonl", ".jsonlines") and isinstance(content, list):
        text = "\n".join(map(json.dumps, content))
    if file.suffix == ".csv" and isinstance(content, list):
        lines = io.StringIO(newline="")
        header = next((row for row in content if isinstance(row, dict)), {})
        csv.writer(lines).writerows(
            [header, *(row.values() if isinstance(row, dict) else [row] for row in content)]
        )
        text = lines.getvalue()
    return _written(file, text.encode("utf-8", "surrogatepass"))


def _written(file: Path, content: bytes) -> Path:
    """SPEC has two files of one format."""
    file.write_bytes(content)
    if file.stem == "image2text":
        file.with_stem("text2image").write_bytes(content)
    return file


def benchmark_settings(root: Path, name: str, **more: Any) -> BenchmarksSettings:
    sets = {folder_of(name): BenchmarkSet()}
    return BenchmarksSettings(str(root), sets=sets, retrieval=RetrievalSettings(None), **more)


@pytest.mark.parametrize("text", [DEEP, '{"a": ' * 5000, "[" * 200 + "]" * 200, '{"a": 1, "a": 2}'])
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested levels|'a' is given twice"):
        parse_json(text)


def test_tables_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text('\ufeffa,b\n\n"1,\n2",3\n')
    assert read_csv(file) == [{"a": "1,\n2", "b": "3"}]
    file.write_text('{"a": 1}\n\n[2]\n')
    assert read_json_lines(file) == [{"a": 1}, [2]]
    for read, content, problem in (
        (read_csv, b"a,b\n1,2\n3\n", "row 2 has 1 fields, expected 2"),
        (read_csv, "a,b\n".encode("utf-16"), "UTF-8"),
        (read_csv, b'a\n"' + b"x" * 200_000, "field limit"),
        (read_json_lines, b'{"a": 1}\n{"a"', "line 2"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=problem):
            read(file)
    with pytest.raises(ValueError, match="cannot be read"):
        read_csv(tmp_path)


def test_lines_of_text(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("\ufeffA dog.\n \nA cat.\n", encoding="utf-8")
    assert read_lines(file) == ["A dog.", "A cat."]
    file.write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match=f"{file} is not valid UTF-8"):
        read_lines(file)


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", "a/../b"])
def test_names_that_lead_out_of_a_root(tmp_path: Path, name: str) -> None:
    for find in (path_below, files_below):
        with pytest.raises(OutsideRoot):
            find(tmp_path, name, follow_symlinks=True)


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a" * 5000, "*/" * 3000])
def test_a_name_that_no_file_can_have_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no files of '.*can be found below") as caught:
        files_below(tmp_path, name)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_links_out_of_a_root_need_permission(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "a").touch()
    (root / "folder").symlink_to(outside)
    (root / "a").symlink_to(outside / "a")
    for name in ("folder/a", "a"):
        with pytest.raises(OutsideRoot):
            path_below(root, name)
        with pytest.raises(OutsideRoot):
            files_below(root, name)
        assert files_below(root, name, follow_symlinks=True) == [root / name]


@pytest.mark.parametrize(("name", "source"), FORMATS)
def test_no_reader_opens_a_caption_file_outside_the_root(
    tmp_path: Path, name: str, source: str
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    root = tmp_path / "root"
    data, file = source_of(root, name, source)
    file.symlink_to(tmp_path / "secret")
    other = f"../{source}", str(tmp_path / source)
    for split in (source, *other):
        named = DataSettings(root, name, {"train": split})
        with pytest.raises(SourceError) as raised:
            list(readers.read(named))
        assert "secret:" not in str(raised.value) and SECRET not in str(raised.value)
    with pytest.raises(SourceError, match=r"link that leads out.*data\.follow_symlinks"):
        list(readers.read(data))


@pytest.mark.parametrize(("name", "source"), FORMATS)
def test_a_valid_file_is_read_and_a_link_to_it_where_the_settings_say_so(
    tmp_path: Path, name: str, source: str
) -> None:
    data, file = source_of(tmp_path / "root", name, source)
    file.write_bytes(content_of(name, source, rows_of(name)))
    assert any(isinstance(row, RawCaption) for row in readers.read(data))
    file.rename(tmp_path / "rows")
    file.symlink_to(tmp_path / "rows")
    allowed = replace(data, follow_symlinks=True)
    assert any(isinstance(row, RawCaption) for row in readers.read(allowed))


@pytest.mark.parametrize(("name", "source"), FORMATS)
@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_caption_file_is_an_error_or_rejected_rows(
    tmp_path: Path, name: str, source: str, content: bytes
) -> None:
    data, file = source_of(tmp_path, name, source)
    file.write_bytes(content)
    _read_all(data)


def test_utf16_and_repeated_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("image,caption\n1.jpg,A dog.\n".encode("utf-16"))
    data = DataSettings(tmp_path, "table", {"train": "t.csv"})
    with pytest.raises(SourceError, match=r"t\.csv is UTF-16, expected UTF-8"):
        list(readers.read(data))
    (tmp_path / "t.csv").write_text("image,caption,caption\n1.jpg,A dog.,A cat.\n")
    with pytest.raises(SourceError, match="'caption' more than once"):
        list(readers.read(data))


def test_a_text_of_parquet_that_is_not_utf8_rejects_its_row_alone(tmp_path: Path) -> None:
    raw = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\6\0\0\0\10\0\0\0"), pa.py_buffer(b"A dog.\xff\xfe")
    )
    pq.write_table(pa.table({"image": ["1.jpg", "2.jpg"], "caption": raw}), tmp_path / "t.parquet")
    good, bad = readers.read(DataSettings(tmp_path, "table", {"train": "t.parquet"}))
    assert isinstance(good, RawCaption) and isinstance(bad, Rejected)


def _read_all(data: DataSettings) -> None:
    """Read a source, which ends with the project's error or yields every row."""
    try:
        rows = list(readers.read(data))
    except (SourceError, SettingsError) as error:
        assert "\n" not in str(error)
        return
    to_table([row for row in rows if isinstance(row, Rejected)], Rejected)
    for row in rows:
        if isinstance(row, RawCaption):
            "".join((row.sample_id, row.image_id, row.image, *row.own, *row.further)).encode()


def _load_all(root: Path, name: str, **more: Any) -> None:
    """Load a benchmark, which ends with the project's error or gives valid items."""
    try:
        subtasks = from_files(benchmark_settings(root, name, **more))
    except SettingsError as error:
        assert "\n" not in str(error)
        return
    for subtask in subtasks:
        assert subtask.items and len({item.item for item in subtask.items}) == len(subtask.items)
        for item in subtask.items:
            texts = (item.item, item.image, *item.positives, *item.negatives)
            assert all(text.encode() and text.strip() for text in texts[1:])


# Nearly any content of a file of plain text is a text.
@pytest.mark.parametrize("name", [name for name in FROM_FILES if name != "urban1k"])
@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_benchmark_file_is_a_line_that_names_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    file = benchmark_file(tmp_path, name, content)
    with pytest.raises(SettingsError, match=re.escape(file.name)) as raised:
        from_files(benchmark_settings(tmp_path, name))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sugar_crepe", lambda items: items["7"].update(caption=" ")),
        ("sugar_crepe", lambda items: items.update({"\n": None})),
        ("sugar_crepe", lambda items: items["7"].update(caption="A \ud800")),
        ("sugar_crepe_pp", lambda items: items.append(items[0])),
        ("sugar_crepe_pp", lambda items: items.append("stray")),
        ("zero_shot", lambda items: items.update(classes="ab")),
        ("zero_shot", lambda items: items.update(classes=["dog"])),
        ("zero_shot", lambda items: items.update(items=[])),
        ("winoground", lambda items: items[0].pop("collapsed_tag")),
        ("bivlc", lambda items: items[0].update(caption="")),
        ("mmvp_vlm", lambda items: items.pop()),
        ("eqben", lambda items: items[0].update(image0="winoground/1.jpg")),
        ("cola", lambda items: items[0].pop()),
        ("aro", lambda items: items[0].update(bbox_x=float("inf"))),
        ("aro", lambda items: items[0].update(relation_name="next to")),
        ("valse", lambda items: items["7"].update(mturk={"caption": "3"})),
        ("whatsup", lambda items: items[0].update(caption_options=["a dog"])),
        ("crepe", lambda items: items[0].update(hard_negs="{[]: 1}")),
        ("crepe", lambda items: items[0].update(image_id="../1")),
        ("vl_checklist", lambda items: items.update(ANNO_PATH="../a.json")),
        ("svo_probes", lambda items: items[0].update(subj_neg="False")),
        ("imagecode", lambda items: items.update({"../..": {"10": "a dog"}})),
        ("imagecode", lambda items: items.update(a=["a dog"])),
        ("negbench", lambda items: items[0].update(correct_answer="2")),
        ("negbench", lambda items: items[0].update(captions="[" * 100_000)),
        ("negbench", lambda items: items[0].update(captions="['a dog', print()]", filepath="a")),
        ("spec", lambda items: items[0].update(label=2)),
        ("spec", lambda items: items[0].update(keys="a cat")),
        ("coco", lambda items: items["images"].append({"id": 2, "file_name": "2.jpg"})),
        ("coco", lambda items: items["annotations"].append({"image_id": 2, "caption": "a"})),
        ("flickr30k", lambda items: items["images"][0].update(split="train")),
        ("flickr30k", lambda items: items["images"][0].update(sentences=[])),
        ("docci", lambda items: items[0].update(split="train")),
        ("iiw", lambda items: items.append(items[0])),
        ("zero_shot_sets", lambda items: items.pop("cat")),
        ("zero_shot_sets", lambda items: items.update(cat=[])),
    ],
)
def test_items_that_cannot_be_scored_are_refused(
    tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    content = json.loads(json.dumps(ITEMS[name]))
    change(content)
    file = benchmark_file(tmp_path, name, content)
    with pytest.raises(SettingsError, match=f"{file.stem}|{name}") as raised:
        from_files(benchmark_settings(tmp_path, name))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", FROM_FILES)
@pytest.mark.parametrize("linked", ["folder", "file"])
def test_benchmark_files_outside_the_root_need_permission(
    tmp_path: Path, name: str, linked: str
) -> None:
    root = tmp_path / "root"
    file = benchmark_file(tmp_path / "outside", name, ITEMS[name])
    if linked == "folder":
        root.mkdir()
        (root / folder_of(name)).symlink_to(tmp_path / "outside" / folder_of(name))
    else:
        link = benchmark_file(root, name, ITEMS[name])
        link.unlink()
        link.symlink_to(file)
    with pytest.raises(SettingsError, match=r"benchmarks\.follow_symlinks"):
        from_files(benchmark_settings(root, name))
    subtask, *_ = from_files(benchmark_settings(root, name, follow_symlinks=True))
    assert subtask.items and subtask.limits.follow_symlinks


@pytest.mark.parametrize("image", ["../../etc/passwd", "/etc/passwd", "link"])
@pytest.mark.parametrize("name", FROM_FILES)
def test_no_image_of_a_benchmark_is_opened_outside_its_folder(
    tmp_path: Path, name: str, image: str
) -> None:
    (tmp_path / "images").mkdir()
    for link in ("link", "link.jpg", "link.png"):
        (tmp_path / "images" / link).symlink_to("/etc/passwd")
    content = json.loads(json.dumps(ITEMS[name]).replace("1.jpg", image))
    benchmark_file(tmp_path, name, content)
    subtask, *_ = from_files(benchmark_settings(tmp_path, name))
    # Some formats put the name below a folder, or take the last part of it.
    with pytest.raises(decoding.ImageError, match="out_of_root|missing"):
        decoding.load(*subtask.image_locations(subtask.items[0])[0])


ODD = st.sampled_from(
    [
        *("", " ", "\0", "\ud800", "\u202e", "\ufeff", "\r", '"', "{key}", "NaN", "=1+1"),
        *("../../etc/passwd", "/etc/passwd", "x" * 200_000, "[" * 300),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ODD
    | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD | st.text(max_size=3), inner),
    max_leaves=6,
)
DAMAGE: list[Callable[[bytes, int], bytes]] = [
    lambda content, place: content,
    lambda content, place: content[: place % (len(content) + 1)],
    lambda content, place: content[: place % (len(content) + 1)] + b"\xff\0" + content[place:],
    lambda content, place: b"\xef\xbb\xbf" + content,
    lambda content, place: content.decode("utf-8", "replace").encode("utf-16"),
    lambda content, place: content.decode("utf-8", "replace").encode("latin-1", "replace"),
    lambda content, place: content.replace(b'"', DEEP[:2000].encode(), 1),
    lambda content, place: b"\x89PNG\r\n\x1a\n" + content,
    lambda content, place: content + content,
]
PLACES = st.integers(0, 3000)
CASES = pytest.mark.parametrize("cases", [45, pytest.param(10_000, marks=pytest.mark.slow)])


def _examples(cases: int) -> settings:
    """So many that each, read whole and damaged in every way, gives at least so many cases."""
    return settings(max_examples=-(-cases // len(DAMAGE)))


@CASES
@pytest.mark.parametrize(("name", "source"), FORMATS)
def test_no_rows_and_no_bytes_end_a_reader(
    tmp_path: Path, count_case: Callable[[], int], name: str, source: str, cases: int
) -> None:
    data, file = source_of(tmp_path, name, source)
    valid = rows_of(name)[0]
    columns = st.sampled_from([*record(), "image_id", "extra"])
    rows = st.lists(
        VALUES
        | st.dictionaries(columns, VALUES, max_size=3).map(lambda changes: {**valid, **changes})
        | columns.map(lambda gone: {key: valid[key] for key in valid if key != gone}),
        max_size=4,
    )

    @_examples(cases)
    @given(rows=rows, place=PLACES)
    def fuzz(rows: list[Any], place: int) -> None:
        content = content_of(name, source, rows)
        for change in DAMAGE:
            count_case()
            file.write_bytes(change(content, place))
            _read_all(data)

    fuzz()


@CASES
@pytest.mark.parametrize("name", FROM_FILES)
def test_no_content_ends_a_benchmark(
    tmp_path: Path, count_case: Callable[[], int], name: str, cases: int
) -> None:
    whole: Any = ITEMS[name]
    listed = isinstance(whole, list)
    inner = whole[0] if listed else whole.get("7", whole)
    changed: st.SearchStrategy[Any] = st.lists(VALUES, max_size=4)
    if isinstance(inner, dict):
        changed = st.dictionaries(st.sampled_from([*inner]), VALUES, max_size=2).map(
            lambda changes: {**inner, **changes}
        )
    contents = VALUES | changed
    if listed:
        contents |= st.lists(changed | VALUES, max_size=3)
    elif "7" in whole:
        contents |= st.dictionaries(st.text(max_size=2), changed | VALUES, max_size=3)

    @_examples(cases)
    @given(content=contents, place=PLACES)
    def fuzz(content: Any, place: int) -> None:
        file = benchmark_file(tmp_path, name, content)
        written = file.read_bytes()
        for change in DAMAGE:
            count_case()
            _written(file, change(written, place))
            _load_all(tmp_path, name)

    fuzz()


@CASES
def test_no_bytes_end_the_reader_of_the_request_log(
    tmp_path: Path, count_case: Callable[[], int], cases: int
) -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    file = tmp_path / hour_folder(start) / "a-0.parquet"
    row = {"request": "a", "row": 0, "time": start, "model": "toy", "fingerprint": "f"}
    row |= {"task": "embed", "latency": 0.1, "caption": "a dog"}
    write_requests(file, pa.Table.from_pylist([row] * 3, schema=REQUESTS))
    whole, places = file.read_bytes(), st.integers(0, file.stat().st_size)

    @_examples(cases)
    @given(place=places, bit=st.integers(0, 7))
    def fuzz(place: int, bit: int) -> None:
        flipped = bytearray(whole + b"\0")
        flipped[place] ^= 1 << bit
        for content in (bytes(flipped), *(change(whole, place) for change in DAMAGE)):
            count_case()
            file.write_bytes(content)
            with suppress(DamagedFileError):
                found = read_requests(tmp_path, start, start + timedelta(hours=1))
                assert sum(map(len, found)) == 3

    fuzz()


def test_parquet_that_would_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, long = tmp_path / "many.parquet", tmp_path / "long.parquet"
    pq.write_table(pa.table({"a": pa.nulls(10_000_000, pa.string())}), many)
    with pytest.raises(ValueError, match="10000000 rows in"):
        untrusted.read_parquet(many)
    numbers = [f"{number}" for number in range(2000)]
    pq.write_table(pa.table({"a": ["x" * 10_000] * 2000, "b": numbers}), long)
    assert long.stat().st_size < 100_000
    monkeypatch.setattr(untrusted, "_MOST_BYTES", 10**7)
    with pytest.raises(ValueError, match=r"long\.parquet .*more than 10000000 bytes"):
        untrusted.read_parquet(long)


def test_columns_of_images_are_no_texts(tmp_path: Path) -> None:
    columns = {
        "a": pa.array(["b"]),
        "plain": pa.array([b"c"]),
        "large": pa.array([b"c"], pa.large_binary()),
        "image": pa.array([{"bytes": b"c", "path": "d"}]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert untrusted.read_parquet(tmp_path / "a.parquet") == [{"a": "b"}]
