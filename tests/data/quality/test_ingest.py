"""Samples, facts and the manifest of ingest."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

from compo_pipeline.core.records import Caption, Fact, Rejected
from compo_pipeline.core.tables import Table
from compo_pipeline.data.images.decoding import DecodedImage
from compo_pipeline.data.quality.ingest import draw_sample, facts_of, manifest_of
from compo_pipeline.data.readers.record import RawCaption, rejected
from compo_pipeline.data.settings import SampleSettings


def record(number: int, split: str = "train") -> RawCaption:
    return RawCaption(f"{split}-{number}", f"i{number}", "i.jpg", ("A dog.",), (), split)


RECORDS: list[RawCaption | Rejected] = [
    *(record(number) for number in range(20)),
    rejected("train-x", "", "cut off"),
    *(record(number, "test") for number in range(3)),
]


def drawn(
    rows: int, seed: int = 0, records: list[RawCaption | Rejected] = RECORDS
) -> list[RawCaption | Rejected]:
    return draw_sample(records, SampleSettings(rows=rows, seed=seed))[0]


def test_the_sample_is_exact_in_the_records_order_and_leaves_the_rest_alone() -> None:
    taken = drawn(7)
    assert len(taken) == 7 + 1 + 3
    assert [entry for entry in RECORDS if entry in taken] == taken
    assert taken[-4:] == RECORDS[-4:]
    assert taken == drawn(7)
    assert taken != drawn(7, seed=1)


def test_another_order_or_further_records_change_no_preference() -> None:
    taken = {entry.sample_id for entry in drawn(7)}
    assert {entry.sample_id for entry in drawn(7, records=RECORDS[::-1])} == taken
    more = {entry.sample_id for entry in drawn(7, records=[*RECORDS, record(99), record(98)])}
    assert more - taken <= {"train-98", "train-99"}
    assert {entry.sample_id for entry in drawn(4)} < taken


def test_every_record_is_as_likely_as_any_other() -> None:
    seen = Counter(entry.sample_id for seed in range(400) for entry in drawn(5, seed)[:5])
    assert len(seen) == 20
    assert all(60 < count < 145 for count in seen.values()), "100 expected, deviation 9"


ROW = Caption("train-1", "i", "a.jpg", 40, 30, ("A dog sits here.", "It sleeps."), "t", "train")
A = DecodedImage("a.jpg", "hash-a", 9, None, 40, 30)


def facts(*rows: Caption, images: tuple[DecodedImage, ...] = (A,)) -> list[Fact]:
    words, by_path = list[int](), {image.path: image for image in images}
    for row in rows:
        counts = [len(sentence.split()) for sentence in row.sentences]
        words += [len(counts), min(counts, default=0), max(counts, default=0)]
    shown = [by_path[path] for path in dict.fromkeys(row.image for row in rows)]
    captions, measured = Table.of(rows, Caption), Table.of(shown, DecodedImage)
    return list(facts_of(captions, words, measured, ["train", "test"]))


def test_the_first_of_repeated_ids_is_clean() -> None:
    other = replace(ROW, sentences=("A cat.",))
    assert [fact.repeats_id for fact in facts(ROW, other, ROW)] == [False, True, True]


def test_a_pair_repeats_by_the_bytes_of_the_image_and_the_first_sentence() -> None:
    copy = replace(A, path="copy.jpg")
    rows = [
        ROW,
        replace(ROW, sample_id="train-2", image="copy.jpg", sentences=("A dog sits here.",)),
        replace(ROW, sample_id="train-3", sentences=("A dog runs here.",)),
        replace(ROW, sample_id="train-4", image="other.jpg"),
    ]
    found = facts(*rows, images=(A, copy, replace(A, path="other.jpg", sha256="hash-b")))
    assert [fact.repeats_pair for fact in found] == [False, True, False, False]
    assert not any(fact.repeats_id for fact in found)


def test_an_image_of_two_splits_stays_with_the_held_out_one() -> None:
    held_out = replace(ROW, sample_id="test-1", image="copy.jpg", split="test")
    train_only = replace(ROW, sample_id="train-2", image="other.jpg")
    found = facts(
        ROW,
        held_out,
        train_only,
        images=(A, replace(A, path="copy.jpg"), replace(A, path="other.jpg", sha256="b")),
    )
    assert [fact.leaks for fact in found] == [True, False, False]
    assert not any(fact.repeats_pair for fact in found), "the held-out row is not lost as well"


def test_unreadable_images_are_not_taken_for_one_another() -> None:
    empty = DecodedImage("a.jpg", "hash of nothing", 0, "empty: the file has no bytes", 0, 0)
    found = facts(
        ROW,
        replace(ROW, sample_id="test-1", image="b.jpg", split="test"),
        images=(empty, replace(empty, path="b.jpg")),
    )
    assert not any(fact.leaks or fact.repeats_pair for fact in found)
    assert found[0].decode_error == "empty: the file has no bytes"


FIRST = DecodedImage("train/a.jpg", "aa", 5, None, 4, 3)
B = DecodedImage("train/b.jpg", "bb", 7, "truncated: cut off", 0, 0)
GONE = DecodedImage("train/c.jpg", "", 0, "missing: no file", 0, 0)


def test_files_count_and_hash(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_bytes(b"{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    found = manifest_of(tmp_path, ["captions.json"], Table.of((B, FIRST, GONE), DecodedImage))
    listing = f"{digest}  captions.json\naa  train/a.jpg\nbb  train/b.jpg\n"
    assert found == {
        "data_hash": hashlib.sha256(listing.encode()).hexdigest(),
        "count": 3,
        "bytes": 14,
        "files": {"captions.json": digest},
    }


def test_the_order_of_reading_does_not_matter_a_byte_does(tmp_path: Path) -> None:
    def data_hash(*images: DecodedImage) -> str:
        return str(manifest_of(tmp_path, [], Table.of(images, DecodedImage))["data_hash"])

    assert data_hash(FIRST, B) == data_hash(B, FIRST) == data_hash(FIRST, B, GONE)
    assert data_hash(FIRST, B) != data_hash(FIRST, replace(B, sha256="cc"))
    assert data_hash(FIRST) != data_hash(replace(FIRST, path="train/z.jpg"))
