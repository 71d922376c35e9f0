"""Captions in another language than the language pipeline's are found and refused."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import spacy
from spacy.language import Language

from compo_pipeline.core.records import Caption
from compo_pipeline.data.quality.caption_language import (
    UnknownLanguage,
    measure,
    measure_sources,
    refuse_unknown,
)
from compo_pipeline.data.quality.settings import DataValidationSettings

SETTINGS = DataValidationSettings(tolerated_share=0.05, rules={})
OTHERS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "captions_other_languages.json").read_text("utf-8")
)


def rows(texts: Iterable[str]) -> list[Caption]:
    return [Caption("s", "i", "a.jpg", 1, 1, (text,), "t", "train") for text in texts]


def share(texts: Iterable[str], nlp: Language) -> float:
    found: float = measure(rows(texts), nlp, SETTINGS)["known_share"]
    return found


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_english_captions_pass_with_a_wide_margin(
    compo_en: Language, shared: Path, split: str
) -> None:
    path = shared / "coco_mini" / "annotations" / f"captions_{split}.json"
    texts = [entry["caption"] for entry in json.loads(path.read_text())["annotations"]]
    assert share(texts, compo_en) > 0.95
    refuse_unknown(measure(rows(texts), compo_en, SETTINGS))


@pytest.mark.parametrize("language", OTHERS)
def test_captions_in_another_language_are_refused(compo_en: Language, language: str) -> None:
    result = measure(rows(OTHERS[language]), compo_en, SETTINGS)
    with pytest.raises(UnknownLanguage) as raised:
        refuse_unknown(result)
    message = raised.value.message
    assert "language.model" in message and "validation.known_words=null" in message
    assert all(repr(word) in message for word in result["unknown"])
    assert "\n" not in message
    assert result["known_share"] < 0.6, "a margin to both sides"
    refuse_unknown({**result, "least_share": None})


def test_a_small_source_in_another_language_is_named(compo_en: Language) -> None:
    """Of all words most are known."""
    english = rows(["A small dog sleeps on a red sofa near the window."] * 3_000)
    foreign = [replace(row, source="web") for row in rows(next(iter(OTHERS.values())))]
    refuse_unknown(measure([*english, *foreign], compo_en, SETTINGS))
    result = measure_sources([*english, *foreign], compo_en, SETTINGS)
    with pytest.raises(UnknownLanguage, match=r"the captions' words of the source web \(not "):
        refuse_unknown(result)
    assert result == {**measure(foreign, compo_en, SETTINGS), "source": "web"}
    assert measure_sources(foreign, compo_en, SETTINGS) == measure(foreign, compo_en, SETTINGS)


def test_few_words_and_pipelines_without_a_vocabulary_are_not_judged(compo_en: Language) -> None:
    few = measure(rows(OTHERS["German"][:2]), compo_en, SETTINGS)
    blank = measure(rows(OTHERS["German"]), spacy.blank("de"), SETTINGS)
    for result in (few, blank):
        assert result["known_share"] is None
        refuse_unknown(result)
