"""Regular forms, articles and capitals."""

import pytest

from compo_pipeline.language.inflection import article, capitalised_as, regular


@pytest.mark.parametrize(
    ("lemma", "tag", "form"),
    [
        ("dog", "NNS", "dogs"),
        ("bus", "NNS", "buses"),
        ("peach", "NNS", "peaches"),
        ("puppy", "NNS", "puppies"),
        ("toy", "NNS", "toys"),
        ("fire hydrant", "NNS", "fire hydrants"),
        ("watch", "VBZ", "watches"),
        ("carry", "VBZ", "carries"),
        ("ride", "VBG", "riding"),
        ("see", "VBG", "seeing"),
        ("tie", "VBG", "tying"),
        ("canoe", "VBG", "canoeing"),
        ("dye", "VBG", "dyeing"),
        ("stop", "VBG", "stopping"),
        ("quit", "VBG", "quitting"),
        ("wait", "VBG", "waiting"),
        ("open", "VBG", "opening"),
        ("show", "VBG", "showing"),
        ("fix", "VBD", "fixed"),
        ("carry", "VBN", "carried"),
        ("play", "VBD", "played"),
        ("chase", "VBN", "chased"),
        ("dye", "VBD", "dyed"),
        ("grab", "VBD", "grabbed"),
        ("big", "JJR", "bigger"),
        ("happy", "JJS", "happiest"),
        ("red", "JJ", "red"),
        ("over", "IN", "over"),
    ],
)
def test_regular_forms(lemma: str, tag: str, form: str) -> None:
    assert regular(lemma, tag) == form


@pytest.mark.parametrize(
    ("a", "an"),
    [
        ("unicorn uniform useful one-way euro ukulele utensil", "umbrella uncle uninteresting"),
        ("house horse hotel Unit", "hour honest heir Apple X-ray SUV"),
        ("yellow 5 ewe US", "elephant ear 8-foot unidentified F"),
    ],
)
def test_articles(a: str, an: str) -> None:
    assert [article(word) for word in a.split()] == ["a"] * len(a.split())
    assert [article(word) for word in an.split()] == ["an"] * len(an.split())


@pytest.mark.parametrize(
    ("word", "model", "written"),
    [
        ("cat", "dog", "cat"),
        ("cat", "Dog", "Cat"),
        ("cat", "DOG", "CAT"),
        ("an", "A", "An"),
        ("t-shirt", "Hat", "T-shirt"),
        ("cat", "犬", "cat"),
        ("cat", "'Dog", "Cat"),
        ("cat", "", "cat"),
    ],
)
def test_capitals(word: str, model: str, written: str) -> None:
    assert capitalised_as(word, model) == written
