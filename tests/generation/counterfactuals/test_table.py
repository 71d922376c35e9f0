"""Counterfactuals of a table: the choice of SPARCL's loader, images, and what is missing."""

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compo_pipeline.core.records import Caption, Counterfactual, Fact, Rejected
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.table_files import LOCAL
from compo_pipeline.data.catalog import FolderDataset
from compo_pipeline.generation.counterfactuals import table
from compo_pipeline.generation.counterfactuals.generation import refuse_too_many
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.methods.contract import Example, ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import by_sample
from compo_pipeline.pipelines.counterfactuals.nodes import (
    make_counterfactuals,
)

CAPTIONS = 5
IMAGES = 3


def texts(image: int) -> list[str]:
    return [f"Caption {place} of image {image}." for place in range(CAPTIONS)]


@pytest.fixture
def rows() -> list[Caption]:
    """COCO's rows: one for each caption of an image, the image's others after its own."""
    found = []
    for image in range(1, IMAGES + 1):
        path = f"train2014/COCO_train2014_{image:012d}.jpg"
        for place, text in enumerate(texts(image)):
            others = [one for one in texts(image) if one != text]
            names = f"train-{image}{place}", f"train-{image}", path
            found.append(Caption(*names, 8, 8, (text, *others), "coco", "train"))
    return found


def picture(file: Path, colour: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), colour, np.uint8)).save(file)


@pytest.fixture
def sparcl(tmp_path: Path) -> Path:
    """SPARCL's csv with its images, each of a colour of its own."""
    file = tmp_path / "sparcl" / "captions.csv"
    file.parent.mkdir()
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, delimiter="\t", lineterminator="\n")
        names = [f"{name}{place}" for place in range(CAPTIONS) for name in "abcd"]
        writer.writerow(["image_id", *names])
        for image in range(1, IMAGES + 1):
            fields: list[Any] = [image]
            for place, text in enumerate(texts(image)):
                number = 10 * image + place
                fields += [number, text, f"Not: {text}", f"So: {text}"]
                for shift, role in enumerate(("negative", "positive")):
                    name = f"{image:012d}_{number:06d}.jpg"
                    picture(file.parent / f"synthetic_{role}" / name, 2 * number + shift)
            writer.writerow(fields)
    return file


Run = Callable[..., tuple[list[Counterfactual], list[Rejected], Path]]


@pytest.fixture
def run(rows: list[Caption], tmp_path: Path) -> Run:
    """The pipeline's nodes on a table; edits, quarantine and the folder of images."""
    facts = [
        Fact(n, row.sample_id, row.image, row.split, "0", None, 1, 1, 1, 1, 1, False, False, False)
        for n, row in enumerate(rows)
    ]
    for row in rows:
        picture(tmp_path / "root" / row.image, 200)

    def start(method: str = "sparcl", **changed: Any) -> Any:
        given = {"caption_editor": "table", "image_generator": "table", "format": "png", **changed}
        chosen = parse(CounterfactualSettings, given, "counterfactuals")
        state, folder = str(tmp_path / "state"), tmp_path / "images"
        made, refused, images = make_counterfactuals(
            *(rows, facts, "train", method, chosen, "compo_en", tmp_path / "root", {}, state, LOCAL)
        )
        FolderDataset(filepath=str(folder)).save(images)
        return list(made), list(refused), folder

    return start


def of_sparcl(file: Path) -> dict[str, Any]:
    return {"file": str(file), "layout": "sparcl", "images": str(file.parent)}


@pytest.mark.parametrize("seed", range(3))
def test_sparcls_rows_give_the_texts_and_images_of_its_loader(
    run: Run, rows: list[Caption], sparcl: Path, seed: int
) -> None:
    """`COCO_neg_pos` of lihaoxin05/SPARCL, with the same random numbers: it chooses one of an
    image's five captions, which brings its own negative and positive, text and image.
    """
    made, refused, folder = run(table=of_sparcl(sparcl))
    assert len(made) == 2 * CAPTIONS * IMAGES and not refused
    method = build("sparcl", {})
    context = ViewContext({}, "", seed, 0, by_sample(made))
    views = list(method.views(rows, context))
    assert len(views) == IMAGES
    with sparcl.open() as opened:
        _, *lines = csv.reader(opened, delimiter="\t")
    for line, view in zip(lines, views, strict=True):
        anchor = next(row for row in rows if row.sample_id == f"train-{line[0]}0")
        column = context.rng("counterfactuals", anchor).choice(list(range(CAPTIONS)))
        number, caption, negative, positive = line[1 + 4 * column : 5 + 4 * column]
        assert view.positives == (caption, positive) and view.negatives == (negative,)
        shown = [np.asarray(Image.open(folder / path)) for path in view.counterfactuals]
        assert [set(pixels.flat) for pixels in shown] == [
            {2 * int(number)},
            {2 * int(number) + 1},
        ]
        assert all(path for path in view.counterfactuals)


def test_absent_images_and_texts_are_quarantined(run: Run, sparcl: Path) -> None:
    (sparcl.parent / "synthetic_negative" / f"{1:012d}_{10:06d}.jpg").unlink()
    (sparcl.parent / "synthetic_positive" / f"{1:012d}_{11:06d}.jpg").write_bytes(b"no image")
    sparcl.write_text(sparcl.read_text().replace("Not: Caption 2 of image 1.", ""))
    made, refused, _ = run(table=of_sparcl(sparcl))
    assert len(refused) == 3
    assert [one.rule for one in refused] == ["no_image", "no_image", "no_text"]
    assert "missing" in refused[0].detail and "synthetic_negative/" in refused[0].detail
    assert (
        "not_an_image" in refused[1].detail and "counterfactuals.table.images" in refused[1].detail
    )
    assert "its record in the table has no negative" in refused[2].detail
    assert sum(row.state == "generated" for row in made) == len(made) - 3


def test_captions_without_a_record_are_quarantined(run: Run, sparcl: Path) -> None:
    *lines, _ = sparcl.read_text().splitlines()
    sparcl.write_text("\n".join(lines))
    _, refused, _ = run(table=of_sparcl(sparcl))
    assert len(refused) == 2 * CAPTIONS
    assert {"the table has no record of it" in one.detail for one in refused} == {True}
    sparcl.write_text("\n".join(lines[:-1]))
    with pytest.raises(
        SettingsError, match=r"^counterfactuals.table: joined by image and caption, 5 of 15"
    ):
        run(table=of_sparcl(sparcl))


def test_a_changed_table_makes_new_edits(run: Run, sparcl: Path) -> None:
    first, _, _ = run(table=of_sparcl(sparcl))
    again, _, _ = run(table=of_sparcl(sparcl))
    sparcl.write_text(sparcl.read_text().replace("So: ", "Or: "))
    changed, _, _ = run(table=of_sparcl(sparcl))
    assert again == first
    assert {row.fingerprint for row in first}.isdisjoint(row.fingerprint for row in changed)
    assert {row.text[:4] for row in changed} == {"Not:", "Or: "}


def test_triplet_data_is_read_from_its_tars(run: Run, rows: list[Caption], tmp_path: Path) -> None:
    """`TripletClipData` of tripletclip/TripletCLIP reads members <key>.image, .caption, .neg_image
    and .neg_caption; a table names those of images, and none is unpacked. There are no positives.
    """
    records = []
    with tarfile.open(tmp_path / "shard-0.tar", "w") as tar:
        for place, row in enumerate(rows):
            buffer = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), place, np.uint8)).save(buffer, "PNG")
            member = tarfile.TarInfo(f"{place:06d}.neg_image")
            member.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(member, buffer)
            records.append(
                {
                    "caption": row.sentences[0],
                    "neg_caption": f"Not: {row.sentences[0]}",
                    "neg_image": f"shard-0.tar/{place:06d}.neg_image",
                }
            )
    file = tmp_path / "triplets.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    columns = {"caption": "caption", "negatives": ["neg_caption"], "negative_images": "neg_image"}
    given = {"file": str(file), "images": str(tmp_path), "columns": columns}
    made, refused, folder = run("triplet_clip", table=given)
    assert {row.role for row in made} == {"negative"} and len(made) == len(rows) and not refused
    refuse_too_many(made, 0.5, Path("page"))
    views = list(build("triplet_clip", {}).views(rows, ViewContext({}, "", 0, 0, by_sample(made))))
    for view in views:
        assert view.negatives == (f"Not: {view.positives[0]}",)
        assert Image.open(folder / view.counterfactuals[0]).size == (8, 8)
        assert view.counterfactuals[1] == ""
    assert Example(rows[0], views[0]).view.negatives


def test_of_several_texts_one_is_drawn_with_its_own_image(
    run: Run, rows: list[Caption], tmp_path: Path
) -> None:
    records = []
    for place, row in enumerate(rows):
        names = [f"{place}-{shade}.png" for shade in range(3)]
        for shade, name in enumerate(names):
            picture(tmp_path / name, shade)
        negatives = [f"{shade} is not {row.sentences[0]}" for shade in range(3)]
        records.append({"id": row.sample_id, "no": negatives, "shown": names})
    file = tmp_path / "table.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    columns = {"sample_id": "id", "negatives": ["no"], "negative_images": "shown"}
    given = {"file": str(file), "images": str(tmp_path), "columns": columns}
    made, _, folder = run(table=given)
    drawn = {row.text[0] for row in made}
    assert len(drawn) == 3
    for row in made:
        assert set(np.asarray(Image.open(folder / row.image)).flat) == {int(row.text[0])}


@pytest.mark.parametrize(
    ("changed", "columns", "expected"),
    [
        ({}, {"phrases": "x"}, "columns.phrases: the caption editor table .* has no use for it"),
        ({}, {"negatives": ["x"]}, "columns.negative_images: expected a column, since negatives"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    changed: dict[str, Any], columns: dict[str, Any], expected: str
) -> None:
    given = {"caption_editor": "table", "image_generator": "table", **changed}
    own = {"file": "t.csv", "columns": {"caption": "text", **columns}}
    chosen = parse(CounterfactualSettings, {**given, "table": own}, "counterfactuals")
    with pytest.raises(SettingsError, match=rf"^counterfactuals\.table\.{expected}"):
        table.table_settings(chosen)
