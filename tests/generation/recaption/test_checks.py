"""What is taken off a model's answer, and which answers are no captions."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from compo_pipeline.core import sentences
from compo_pipeline.data.quality.caption_language import Vocabulary
from compo_pipeline.generation.chat.answers import Answer
from compo_pipeline.generation.recaption.recaptioning import check, repeated_share
from compo_pipeline.generation.recaption.settings import RecaptionSettings

LIMITS = RecaptionSettings()


@pytest.fixture(scope="module")
def vocabulary(compo_en: Language) -> Vocabulary:
    return Vocabulary(compo_en)


def rule(answer: Answer, vocabulary: Vocabulary, limits: RecaptionSettings = LIMITS) -> str:
    return check(answer, limits, vocabulary).rule


@pytest.mark.parametrize(
    ("answer", "caption", "opening"),
    [
        ("A dog on a mat.", "A dog on a mat.", ""),
        ("The image shows a dog\n on a mat.", "a dog on a mat.", "The image shows"),
        ("<think>A dog? Yes.</think>\nA dog.", "A dog.", ""),
        ("```\nA dog.\n```", "A dog.", ""),
        ("**Caption:** A dog.", "A dog.", ""),
        ('"The image features a dog."', "a dog.", "The image features"),
        ('"Stop" and "Go" on signs.', '"Stop" and "Go" on signs.', ""),
        ("<think>It never ends", "", ""),
    ],
)
def test_what_surrounds_a_caption_is_removed(
    answer: str, caption: str, opening: str, vocabulary: Vocabulary
) -> None:
    found = check(Answer(answer, False), LIMITS, vocabulary)
    assert (found.text, found.opening) == (caption, opening)


@pytest.mark.parametrize("half", ["development", "held_out"])
def test_the_stored_answers_of_captioners(half: str, vocabulary: Vocabulary) -> None:
    lines = (Path(__file__).parent / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [each for each in map(json.loads, lines) if each["half"] == half]
    found = [check(Answer(each["answer"], False), LIMITS, vocabulary) for each in answers]
    wrong = [
        each["answer"]
        for each, one in zip(answers, found, strict=True)
        if each["caption"] != (None if one.rule else one.text)
    ]
    assert len(answers) == 120 and len(wrong) <= 2, wrong


@given(st.text(max_size=60))
def test_openings_are_removed_as_ingest_does(vocabulary: Vocabulary, text: str) -> None:
    """Whatever else is removed, the rest has no opening that ingest would still remove."""
    found = check(Answer(text, False), LIMITS, vocabulary)
    assert not found.opening or sentences.clean(found.text)[1] is None
    assert "\n" not in found.text


@pytest.mark.parametrize(
    ("answer", "broken"),
    [
        (Answer("", False), "empty"),
        (Answer("I'm sorry, I can't help with that.", False), "refusal"),
        (Answer("There is an image, but I cannot see it.", False), "refusal"),
        (Answer("A dog.", False, "No dogs."), "refusal"),
        (Answer("A dog on a", True), "too_long"),
        (Answer("the red dog sits " * 30, False), "repetition"),
        (Answer("Ein Hund schläft auf dem Sofa neben seinem Napf.", False), "unknown_words"),
        (Answer("qwx zzkl prrt dog vvbn", False), "unknown_words"),
        (Answer("A dog sleeps on a red sofa beside its bowl.", False), ""),
    ],
)
def test_answers_that_are_no_captions(answer: Answer, broken: str, vocabulary: Vocabulary) -> None:
    assert rule(answer, vocabulary) == broken


def test_long_captions_and_words_that_nobody_knows(vocabulary: Vocabulary) -> None:
    lenient = RecaptionSettings(known_words=None)
    for count, broken in ((250, ""), (251, "too_long")):
        words = " ".join(f"dog{number}" for number in range(count))
        assert rule(Answer(words, False), vocabulary, lenient) == broken


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=30))
def test_the_share_of_repeated_runs(words: list[str]) -> None:
    runs = [tuple(words[start : start + 3]) for start in range(len(words) - 2)]
    again = sum(count - 1 for count in Counter(runs).values())
    assert repeated_share(words) == pytest.approx(again / len(runs) if runs else 0.0)


def test_captions_of_people_stay_as_they_are(vocabulary: Vocabulary, shared: Path) -> None:
    folder = shared / "coco_mini" / "annotations"
    texts = [
        " ".join(entry["caption"].split())
        for name in ("train2017", "val2017")
        for entry in json.loads((folder / f"captions_{name}.json").read_text())["annotations"]
    ]
    found = [check(Answer(text, False), LIMITS, vocabulary) for text in texts]
    changed = [text for text, one in zip(texts, found, strict=True) if one != (text, "", "", "")]
    assert len(texts) > 500 and all(sentences.clean(text)[1] for text in changed)
