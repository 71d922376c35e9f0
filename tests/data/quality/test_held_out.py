"""Images that are held out of training: of a sample's surplus, or carved out of the rows."""

import hashlib
import logging
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compo_pipeline.core.tables import CARVED, HELD_OUT, training_rows
from compo_pipeline.data.quality.ingest import Ingested, ingest
from compo_pipeline.data.quality.settings import IngestSettings, SentenceSettings
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.data.settings import SampleSettings
from compo_pipeline.evaluation.contamination import training_rows as identified

SENTENCES = SentenceSettings(least_words=1, whole=True)
IMAGES = 60
ALL = ("train", CARVED)


@pytest.fixture
def records(tmp_path: Path) -> list[RawCaption]:
    """Two captions of each of 60 training images; ten have a copy, one is a test image too."""
    found = []
    for number in range(IMAGES):
        names = [f"{number}.png"] + [f"copy-{number}.png"] * (number % 6 == 0)
        names += ["test.png"] * (number == 7)
        for name in names:
            Image.new("RGB", (40, 40), (number, 9, 9)).save(tmp_path / name)
            split = "test" if name == "test.png" else "train"
            for text in ("a dog", "a cat"):
                key = f"{name}-{text}"
                found.append(RawCaption(key, name, name, (f"{text} {number}",), (), split))
    return found


def test_several_sources_hold_out_images_of_each(tmp_path: Path, records: list[RawCaption]) -> None:
    """Ten images: half of what the sample of a source leaves; the other source leaves none."""
    own: dict[str, list[RawCaption]] = {"large": [], "small": []}
    for record in records:
        name = "small" if int(record.own[0].rpartition(" ")[2]) >= 50 else "large"
        own[name].append(replace(record, source=name))
    splits: dict[str, list[str]] = {"train": [], "test": []}
    source = {"root": str(tmp_path), "splits": splits}
    samples = {"large": SampleSettings(rows=20), "small": SampleSettings()}
    settings = IngestSettings(sentences=SENTENCES)
    found = ingest(own, source, settings, samples, "train", held_out=10)
    facts = found.facts
    sums = facts.column("image_hash").to_pylist()
    content = dict(zip(facts.column("image").to_pylist(), sums, strict=True))

    def images(*splits: str) -> set[str]:
        return {content[row.image] for row in found.captions.having("split", splits)}

    left, carved, trains = images(HELD_OUT), images(CARVED), images("train")
    assert {row.source for row in found.captions.having("split", [HELD_OUT])} == {"large"}
    assert len(left) == 5 and len(carved) == min(5, len(trains | carved) // 10) > 0
    leaks = set(facts.having("leaks", [True]).column("image_hash").to_pylist())
    assert trains.isdisjoint((left | carved) - leaks)


def ingested(
    root: Path, records: list[RawCaption], held_out: int, rows: int | None = None
) -> Ingested:
    source = {"root": str(root), "format": "x", "splits": {"train": [], "test": []}}
    settings = IngestSettings(sentences=SENTENCES)
    samples = {"x": SampleSettings(rows=rows)}
    return ingest({"x": records}, source, settings, samples, "train", held_out=held_out)


def contents(root: Path, found: Ingested) -> dict[str, set[str]]:
    """SHA-256 of the files that the rows of each split name."""
    by_split = defaultdict(set)
    for row in found.captions:
        by_split[row.split].add(hashlib.sha256((root / row.image).read_bytes()).hexdigest())
    return by_split


def test_carved_images_leave_with_all_their_rows_and_copies(tmp_path, records) -> None:
    before, after = (ingested(tmp_path, records, count) for count in (0, 5))
    own = contents(tmp_path, after)
    assert len(own[CARVED]) == 5
    assert not own[CARVED] & (own["train"] | own["test"])
    assert own[CARVED] | own["train"] == contents(tmp_path, before)["train"]
    assert HELD_OUT not in own


def test_all_rows_are_those_of_a_run_without_any_carved(tmp_path, records) -> None:
    """The rows, their order, and what validation checks of them."""
    before, after = (ingested(tmp_path, records, count) for count in (0, 5))
    expected = [record.sample_id for record in records if record.split == "train"]
    assert [row.sample_id for row in training_rows(after.captions, ALL)] == expected
    carved = len(after.captions.having("split", [CARVED]))
    assert len(training_rows(after.captions, "train")) == len(expected) - carved
    assert carved >= 10
    for old, new in zip(before.facts, after.facts, strict=True):
        same = ("sample_id", "image_hash", "leaks", "repeats_pair", "repeats_id")
        assert [getattr(old, name) for name in same] == [getattr(new, name) for name in same]
    assert before.manifest == after.manifest


def test_the_same_images_are_carved_whatever_order_and_names(tmp_path, records) -> None:
    carved = contents(tmp_path, ingested(tmp_path, records, 5))[CARVED]
    assert contents(tmp_path, ingested(tmp_path, records[::-1], 5))[CARVED] == carved
    moved = []
    for record in records:
        name = f"z-{record.image}"
        (tmp_path / name).write_bytes((tmp_path / record.image).read_bytes())
        values = (record.own, record.further, record.split)
        moved.append(RawCaption(f"z-{record.sample_id}", name, name, *values))
    assert contents(tmp_path, ingested(tmp_path, moved, 5))[CARVED] == carved
    fewer = contents(tmp_path, ingested(tmp_path, records, 3))[CARVED]
    assert len(fewer) == 3 and fewer < carved


def test_no_more_than_a_tenth_is_carved_and_a_line_says_so(tmp_path, records, caplog) -> None:
    with caplog.at_level(logging.WARNING, "compo_pipeline"):
        found = ingested(tmp_path, records, 2000)
    # One of the sixty is a test image, and does not train.
    assert len(contents(tmp_path, found)[CARVED]) == (IMAGES - 1) // 10
    (line,) = [each for each in caplog.messages if each.startswith("foils.carve:")]
    assert "2000 images are to be held out" in line and "lower foils.carve" in line


def test_images_that_a_sample_leaves_are_used_first(tmp_path, records) -> None:
    """The sample is the one without them, and each image comes with all its rows."""
    plain = [record for record in records if not record.image.startswith("copy")]
    before, after = (ingested(tmp_path, plain, count, rows=20) for count in (0, 8))
    drawn = [row.sample_id for row in training_rows(before.captions, "train")]
    assert [row.sample_id for row in training_rows(after.captions, "train")] == drawn
    assert len(drawn) == 20 and not after.captions.having("split", [CARVED])
    held = [row.image for row in after.captions if row.split == HELD_OUT]
    assert len(set(held)) == 8 and len(held) == 16
    assert not set(held) & {row.image for row in before.captions if row.split == "train"}
    again = ingested(tmp_path, plain[::-1], 8, rows=20)
    assert {row.image for row in again.captions if row.split == HELD_OUT} == set(held)


def test_a_copy_of_a_training_image_is_no_held_out_one(tmp_path, records) -> None:
    """Of the two the held-out row is bad: the training rows stay the sample's."""
    found = ingested(tmp_path, records, 50, rows=40)
    trained = contents(tmp_path, found)["train"]
    before = {fact.sample_id: fact.leaks for fact in ingested(tmp_path, records, 0, 40).facts}
    copies = 0
    for row, fact in zip(found.captions, found.facts, strict=True):
        if row.split == HELD_OUT:
            assert fact.leaks >= (fact.image_hash in trained)
            copies += fact.image_hash in trained
        elif row.split == "train":
            assert fact.leaks == before[row.sample_id]
    assert copies


def test_carved_rows_are_no_training_rows_of_the_overlaps(tmp_path, records) -> None:
    found = ingested(tmp_path, records, 5)
    own = contents(tmp_path, found)
    for split, hashes in (("train", own["train"]), (ALL, own["train"] | own[CARVED])):
        known = identified(found.captions, found.facts, split)
        for each in own["train"] | own[CARVED]:
            assert (each in known.hashes) == (each in hashes)
