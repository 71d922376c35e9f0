"""Captions to sentences, and the tally."""

from compo_pipeline.data.quality.ingest import Preparation
from compo_pipeline.data.quality.settings import SentenceSettings
from compo_pipeline.data.readers.record import RawCaption


def raw(*own: str, further: tuple[str, ...] = (), number: int = 0) -> RawCaption:
    return RawCaption(f"train-{number}", "i", "i.jpg", own, further, "train")


def prepared(*own: str, further: tuple[str, ...] = ()) -> list[str]:
    sentences, _ = Preparation(SentenceSettings()).sentences(raw(*own, further=further))
    return [sentence for sentence, _ in sentences]


def test_the_own_caption_comes_first_then_its_other_sentences_then_the_further_ones() -> None:
    sentences = prepared(
        "A dog sits on a sofa. The sofa is red and old.",
        further=("One brown dog at home.", "A pet sleeps\nindoors today. It looks very calm."),
    )
    assert sentences == [
        "A dog sits on a sofa.",
        "The sofa is red and old.",
        "One brown dog at home.",
        "A pet sleeps indoors today.",
        "It looks very calm.",
    ]


def test_words_are_counted_with_each_sentence() -> None:
    preparation = Preparation(SentenceSettings())
    assert preparation.sentences(raw("It's a dog's bed. Three small words here."))[0] == (
        ("It's a dog's bed.", 6),
        ("Three small words here.", 4),
    )


def test_only_the_first_sentence_loses_its_opening() -> None:
    sentences = prepared(
        "The image shows a dog on a red sofa.", further=("The image shows a dog at home.",)
    )
    assert sentences == ["a dog on a red sofa.", "The image shows a dog at home."]


def test_sentences_of_unfit_length_are_dropped_at_the_bounds() -> None:
    four, thirty_four = "One two three four.", " ".join(["word"] * 34) + "."
    assert prepared(four, "One two three.", thirty_four, " ".join(["word"] * 35)) == [
        four,
        thirty_four,
    ]


def test_a_row_whose_own_caption_holds_nothing_fit_has_no_sentences() -> None:
    assert prepared("A dog.", further=("A brown dog at home.",)) == []
    assert prepared("", further=("A brown dog at home.",)) == []


def test_a_sentence_stands_once_in_a_row() -> None:
    assert prepared("A brown dog at home.", further=("A brown dog at home.",) * 2) == [
        "A brown dog at home."
    ]


def test_whole_captions_stay_as_they_were_written() -> None:
    preparation = Preparation(SentenceSettings(least_words=1, most_words=77, whole=True))
    sentences, _ = preparation.sentences(
        raw("a screenshot of  a dog\n. It sleeps.", further=("Two. Cats.", " ", "…"))
    )
    assert sentences == (("a screenshot of a dog . It sleeps.", 7), ("Two. Cats.", 2))
    assert preparation.report()["captions_cleaned"] == 0


def test_emoji_and_other_languages_keep_their_text() -> None:
    assert prepared("Ein Hund schläft 🐶 auf dem Sofa. Él está en casa hoy.") == [
        "Ein Hund schläft 🐶 auf dem Sofa.",
        "Él está en casa hoy.",
    ]
    # No spaces, hence one word: quarantined for want of sentences, never garbled.
    assert prepared("一只狗睡在沙发上。") == []


def test_the_tally_counts_each_caption_once() -> None:
    preparation = Preparation(SentenceSettings())
    captions = ["The image shows a dog on a sofa.", "This image is a cat on a mat. Tiny."]
    for number, caption in enumerate(captions):
        others = tuple(other for other in captions if other != caption)
        preparation.sentences(raw(caption, further=others, number=number))
    preparation.sentences(raw(" ".join(["word"] * 40)))
    report = preparation.report()
    assert set(report.pop("forms"))
    assert report == {
        "captions": 3,
        "captions_cleaned": 2,
        "share_cleaned": 2 / 3,
        "openings": {"The image shows": 1, "This image is": 1},
        "examples": [
            {"sample_id": "train-0", "before": captions[0], "after": "a dog on a sofa."},
            {"sample_id": "train-1", "before": captions[1], "after": "a cat on a mat. Tiny."},
        ],
        "sentences_used": 2,
        "sentences_dropped": {"too_few_words": 1, "too_many_words": 1},
        "captions_without_a_sentence": 1,
    }


def test_marks_that_coca_s_decoder_writes_are_no_part_of_a_caption() -> None:
    assert prepared("<start_of_text>a dog on a sofa . <end_of_text>!!") == ["a dog on a sofa ."]
    assert prepared("A dog of <3 kg on a sofa.") == ["A dog of <3 kg on a sofa."]
