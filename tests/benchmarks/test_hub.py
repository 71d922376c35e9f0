"""The hub's Parquet with images inside gives what the official files of the same content give."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.benchmarks.conftest import load

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import (
    BenchmarkSet,
    BenchmarksSettings,
)
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images import decoding
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.models.loading import load as load_model

ROWS = 9
IMAGE_OF_ROW = [number // 2 for number in range(ROWS)]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
ORDER = ("correct_caption", "hard_text_1", "hard_text_2", "hard_text_3", "hard_text_4")
Rows = list[dict[str, Any]]


class Form(NamedTuple):
    """A benchmark in both forms.

    `official` writes its files from rows whose images are names without ending, `columns` has the
    images' columns in the Parquet by their official fields, `files` are the Parquet files.
    """

    official: Callable[[Path, Rows], None]
    columns: dict[str, str]
    texts: tuple[str, ...]
    ending: str
    files: tuple[str, ...]


def write_lines(file: str, ending: str = "", prefix: str = "") -> Callable[[Path, Rows], None]:
    """A writer of JSON lines, or of a JSON list; names have this ending and prefix."""

    def write(root: Path, rows: Rows) -> None:
        changed = [
            {
                key: f"{prefix}{value}{ending}" if key in IMAGE_FIELDS else value
                for key, value in row.items()
            }
            for row in rows
        ]
        lines = file.endswith(".jsonl")
        content = "\n".join(map(json.dumps, changed)) if lines else json.dumps(changed)
        (root / file).write_text(content)

    return write


IMAGE_FIELDS = {"image_0", "image_1", "image_2", "image", "negative_image", "filename"}
CAPTIONS = ("caption_0", "caption_1")
FORMS = {
    "winoground": Form(
        write_lines("examples.jsonl"),
        {"image_0": "image_0", "image_1": "image_1"},
        (*CAPTIONS, "collapsed_tag"),
        ".png",
        ("data/test-00000-of-00001.parquet",),
    ),
    "color_swap": Form(
        write_lines("test.json", ".png", "images/"),
        {"image_1": "image_1", "image_2": "image_2"},
        ("caption_1", "caption_2"),
        ".png",
        ("data/test-00000-of-00001-0123456789abcdef.parquet",),
    ),
    "bivlc": Form(
        write_lines("test.jsonl", ".png"),
        {"image": "image", "negative_image": "negative_image"},
        ("caption", "negative_caption", "type"),
        ".png",
        tuple(f"data/test-0000{k}-of-00003.parquet" for k in range(3)),
    ),
    "coco_counterfactuals": Form(
        write_lines("examples.jsonl"),
        {"image_0": "image_0", "image_1": "image_1"},
        CAPTIONS,
        ".jpg",
        ("default/train/0000.parquet", "default/train/0001.parquet"),
    ),
    "aro": Form(
        write_lines("coco_order.json", ".png"),
        {"image": "images"},
        ORDER,
        ".png",
        tuple(f"ARO-COCO-order/data/test-0000{k}-of-00002.parquet" for k in range(2)),
    ),
    "sugar_crepe_pp": Form(
        write_lines("swap_att.json", ".png"),
        {"filename": "image"},
        ("caption", "caption2", "negative_caption"),
        ".png",
        ("swap_atribute/train/0000.parquet",),
    ),
}


def noise(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def rows_of(form: Form) -> Rows:
    """Rows of which two in turn have the same images."""
    rows = []
    for number in range(ROWS):
        texts = {name: f"a {name} of {number}" for name in form.texts}
        if "type" in texts or "collapsed_tag" in texts:
            texts[form.texts[-1]] = ("swap", "replace")[number % 2]
        names = {
            field: f"i{IMAGE_OF_ROW[number] + 4 * place}"
            for place, field in enumerate(form.columns)
        }
        rows.append({"id": number, **names, **texts})
    return rows


def write_official(root: Path, form: Form, images: dict[str, bytes]) -> Path:
    (root / "images").mkdir(parents=True)
    form.official(root, rows_of(form))
    for name, content in images.items():
        (root / "images" / f"{name}{form.ending}").write_bytes(content)
    return root


def write_hub(
    root: Path,
    form: Form,
    images: dict[str, bytes],
    *,
    plain: bool = False,
    files: Sequence[str] = (),
) -> Path:
    """The same rows in the hub's layout, in row groups of two; `plain` has bytes alone."""
    rows = rows_of(form)
    files = files or form.files
    for place, shard in enumerate(np.array_split(np.arange(len(rows)), len(files))):
        own = [rows[k] for k in shard]
        table = {key: [row[key] for row in own] for key in ("id", *form.texts)}
        for field, column in form.columns.items():
            cells = [
                {"bytes": images[row[field]], "path": f"{row[field]}{form.ending}"} for row in own
            ]
            table[column] = (
                pa.array([cell["bytes"] for cell in cells]) if plain else pa.array(cells, IMAGE)
            )
        path = root / files[place]
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), path, row_group_size=2)
    return root


def with_pixels(subtask: Subtask) -> Subtask:
    """A subtask whose images are named by their pixels."""

    def named(place: Any) -> str:
        return hashlib.sha256(decoding.load(*place).tobytes()).hexdigest()

    items = []
    for item in subtask.items:
        first, *others = map(named, subtask.image_locations(item))
        items.append(replace(item, image=first, other_images=tuple(others)))
    return replace(subtask, images=Path(), items=tuple(items))


def numbered(rows: Sequence[Score]) -> list[Score]:
    """Rows whose images are numbered in their order."""
    numbers = {group: place for place, group in enumerate(dict.fromkeys(r.group for r in rows))}
    return [replace(row, group=f"{numbers[row.group]}") for row in rows]


@pytest.fixture
def images() -> dict[str, bytes]:
    return {f"i{number}": noise(number) for number in range(ROWS)}


@pytest.mark.parametrize(("name", "plain"), [*((name, False) for name in FORMS), ("bivlc", True)])
def test_items_and_scores_are_those_of_the_official_files(
    name: str,
    plain: bool,
    images: dict[str, bytes],
    tiny_model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    form = FORMS[name]
    official = load(name, write_official(tmp_path / "official", form, images))
    hub = load(name, write_hub(tmp_path / "hub", form, images, plain=plain))
    assert sum(len(task.items) for task in hub) >= ROWS
    assert list(map(with_pixels, hub)) == list(map(with_pixels, official))
    loaded = load_model(tiny_model(0))
    settings = EvaluationSettings(image_batch=4, workers=2)
    rows = [
        list(score_model(tasks, Embedder(tasks, settings)(loaded, "m"), "m").rows)
        for tasks in (official, hub)
    ]
    images_of_items = {item.image for task in official for item in task.items}
    assert {row.group for row in rows[0]} == images_of_items
    # Names of images differ, not which rows are of one image.
    assert list(map(numbered, rows)) == [numbered(rows[0])] * 2


def test_parquet_with_names_of_images(tmp_path: Path) -> None:
    form = FORMS["sugar_crepe_pp"]
    (tmp_path / "official").mkdir()
    form.official(tmp_path / "official", rows_of(form))
    rows = json.loads((tmp_path / "official" / "swap_att.json").read_text())
    file = tmp_path / "hub" / "swap_atribute" / "train" / "0000.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), file)
    (official,), (hub,) = (load("sugar_crepe_pp", tmp_path / each) for each in ("official", "hub"))
    assert hub == replace(official, images=tmp_path / "hub" / "images")


def broken(images: dict[str, bytes]) -> dict[str, bytes]:
    """Images of which four cannot be used."""
    bomb = io.BytesIO()
    Image.new("1", (8000, 8000)).save(bomb, "PNG")
    whole = images["i2"]
    changed = {
        "i1": bomb.getvalue(),
        "i2": whole[: len(whole) // 2],
        "i3": b"no image",
        "i4": b"",
    }
    return {**images, **changed}


def test_broken_images_are_reported_as_those_of_files_are(
    images: dict[str, bytes], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    name, form, content = "bivlc", FORMS["bivlc"], broken(images)
    loaded = load_model(tiny_model(0))
    settings = EvaluationSettings(workers=2)
    found = []
    for tasks in (
        load(name, write_official(tmp_path / "official", form, content)),
        load(name, write_hub(tmp_path / "hub", form, content)),
    ):
        embedded = Embedder(tasks, settings)(loaded, "m")
        problems = {
            (task.name, item): reason
            for task in tasks
            for item, reason in embedded.problems(task).items()
        }
        rows = score_model(tasks, embedded, "m").rows
        found.append((problems, [(row.item, row.value, row.skipped) for row in rows]))
    assert found[0] == found[1]
    reasons = {problem.partition(":")[0] for problem in found[0][0].values()}
    assert reasons == {"oversized", "truncated", "not_an_image", "empty"}


def rename(file: str, column: str, other: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        table = pq.read_table(root / file)
        names = [other if name == column else name for name in table.column_names]
        pq.write_table(table.rename_columns(names), root / file)

    return change


def copy(source: str, target: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        (root / target).write_bytes((root / source).read_bytes())

    return change


BIVLC = FORMS["bivlc"].files
ARO = FORMS["aro"].files


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "bivlc",
            rename(BIVLC[1], "negative_image", "image_negative"),
            r"test-00001-of-00003\.parquet: the columns are .*image_negative \(images\).*expected "
            r"image \(images.*negative_image \(images or their names\), caption, negative_caption",
        ),
        (
            "bivlc",
            lambda root: (root / BIVLC[1]).unlink(),
            "numbers 0, 2, expected",
        ),
        (
            "bivlc",
            lambda root: (root / BIVLC[0]).write_bytes(b"PAR1"),
            r"test-00000-of-00003\.parquet is damaged",
        ),
        (
            "aro",
            copy(ARO[0], "vg/data/test-00000-of-00001.parquet"),
            "vg/data/.*named as one of: coco_order, flickr30k_order",
        ),
        (
            "aro",
            lambda root: (root / "coco_order.json").write_text(
                json.dumps([{"image": "1.jpg", "caption_options": ["a b", "b a"]}])
            ),
            r"coco_order\.json and .*both coco_order: remove one",
        ),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(
    name: str,
    change: Callable[[Path], object],
    message: str,
    images: dict[str, bytes],
    tmp_path: Path,
) -> None:
    root = write_hub(tmp_path, FORMS[name], images)
    change(root)
    with pytest.raises(SettingsError, match=message) as raised:
        load(name, root)
    assert "\n" not in str(raised.value)


def test_the_split_test_is_read_of_several(images: dict[str, bytes], tmp_path: Path) -> None:
    form = FORMS["color_swap"]
    root = write_hub(tmp_path, form, images)
    copy(form.files[0], "data/train-00000-of-00001.parquet")(root)
    (task,) = load("color_swap", root)
    assert all("/test-" in f"/{item.image}" for item in task.items)


def test_official_files_are_read_before_parquet(images: dict[str, bytes], tmp_path: Path) -> None:
    form = FORMS["winoground"]
    root = write_official(tmp_path, form, images)
    expected = load("winoground", root)
    write_hub(root, form, images)
    assert load("winoground", root) == expected


def test_a_link_out_of_the_root_needs_permission(images: dict[str, bytes], tmp_path: Path) -> None:
    form = FORMS["bivlc"]
    outside = write_hub(tmp_path / "outside", form, images)
    for file in form.files:
        link = tmp_path / "root" / "bivlc" / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside / file)
    sets: dict[str, BenchmarkSet | None] = {"bivlc": BenchmarkSet()}
    settings = BenchmarksSettings(root=str(tmp_path / "root"), sets=sets)
    with pytest.raises(SettingsError, match=r"benchmarks\.follow_symlinks"):
        from_files(settings)
    (task, *_) = from_files(replace(settings, follow_symlinks=True))
    assert decoding.load(*task.image_locations(task.items[0])[0]).size == (24, 20)
    closed = replace(task, limits=decoding.Limits())
    with pytest.raises(decoding.ImageError, match="out_of_root"):
        decoding.load(*closed.image_locations(task.items[0])[0])
