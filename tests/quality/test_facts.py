"""Facts about rows: repeats, leaks and counts."""

from dataclasses import replace

from compo_pipeline.images.decoding import DecodedImage
from compo_pipeline.quality.facts import measured
from compo_pipeline.records import Caption, Fact

ROW = Caption("train-1", "i", "a.jpg", 40, 30, ("A dog sits here.", "It sleeps."), "t", "train")
A = DecodedImage("a.jpg", "hash-a", 9, 1, None, 40, 30)


def facts(*rows: Caption, images: tuple[DecodedImage, ...] = (A,)) -> list[Fact]:
    words = [[len(sentence.split()) for sentence in row.sentences] for row in rows]
    return list(measured(rows, words, {image.path: image for image in images}, ["train", "test"]))


def test_a_row_in_numbers() -> None:
    assert facts(ROW) == [
        Fact(
            row=0,
            sample_id="train-1",
            image="a.jpg",
            split="train",
            image_hash="hash-a",
            decode_error=None,
            width=40,
            height=30,
            sentences=2,
            least_words=2,
            most_words=4,
            repeats_id=False,
            repeats_pair=False,
            leaks=False,
        )
    ]


def test_no_sentences_are_zero_words() -> None:
    (fact,) = facts(replace(ROW, sentences=()))
    assert (fact.sentences, fact.least_words, fact.most_words) == (0, 0, 0)


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
    empty = DecodedImage("a.jpg", "hash of nothing", 0, 1, "empty: the file has no bytes", 0, 0)
    found = facts(
        ROW,
        replace(ROW, sample_id="test-1", image="b.jpg", split="test"),
        images=(empty, replace(empty, path="b.jpg")),
    )
    assert not any(fact.leaks or fact.repeats_pair for fact in found)
    assert found[0].decode_error == "empty: the file has no bytes"
