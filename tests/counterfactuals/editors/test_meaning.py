"""Texts that mean the same as a caption, and texts that do not."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.counterfactuals.editors.meaning import (
    content_words,
    kept_share,
    may_both_be_true,
    mutually_exclusive,
    negative_flaw,
    positive_flaw,
    same_meaning,
)
from compo_pipeline.storage.records import Parse

Parsed = Callable[[str], Parse]
SAME = [
    ("A couch near a bed.", "A sofa close to a bed."),
    ("Two dogs sit on a mat.", "Two dogs are sitting on a mat"),
    ("A dog and a cat are on a mat.", "A cat and a dog are on a mat."),
    ("A man riding a horse.", "A horse being ridden by a man."),
    ("A star left of a box.", "A box right of a star."),
    ("A black and white cow.", "A white and black cow."),
    ("A big red car.", "A red big car."),
    ("2 dogs on a mat", "Two dogs on the mat"),
]
OTHER = [
    ("A dog on a mat.", "A cat on a mat.", "says 'cat' in place of 'dog'"),
    ("A dog on a mat.", "Two dogs on a mat.", "says 'dogs' in place of 'dog'"),
    ("A dog chases a cat.", "A cat chases a dog.", "another order"),
    ("A dog chases a cat.", "A dog chased by a cat.", "turns round"),
    ("A red car and a bus.", "A red bus and a car.", "another order"),
    ("A dog on a mat.", "No dog on a mat.", "denies"),
    ("A lamp above a bed.", "A lamp below a bed.", "says 'below' in place of 'above'"),
    ("A man and his dog.", "A man and her dog.", "says 'she' in place of 'he'"),
    ("A dog on a rug.", "A dog with a spoon.", "says 'spoon' in place of 'rug'"),
]


@pytest.mark.parametrize(("caption", "text"), SAME)
def test_the_same(parsed: Parsed, caption: str, text: str) -> None:
    assert positive_flaw(parsed(caption), text) == ""
    assert negative_flaw(parsed(caption), text) != ""


@pytest.mark.parametrize(("caption", "text", "reason"), OTHER)
def test_another_thing(parsed: Parsed, caption: str, text: str, reason: str) -> None:
    assert reason in positive_flaw(parsed(caption), text)
    assert negative_flaw(parsed(caption), text) == ""


@pytest.mark.parametrize(
    ("caption", "text", "positive", "negative"),
    [
        # Less is still true, and not the same.
        ("A red car near a bus.", "A car near a bus.", "leaves out 'red'", "only leaves words out"),
        # More may be false, or not.
        ("A car near a bus.", "A red car near a bus.", "adds 'red'", ""),
        # A puppy is a dog, so that neither is sure.
        ("A dog on a mat.", "A puppy on a mat.", "", "says the same as the caption"),
        # Nobody knows the word.
        ("A dog on a mat.", "A hound on a qwertz.", "", ""),
        # What may be true of one thing changes places with it.
        ("A man beside a person in a car.", "A person beside a man in a car.", "another order", ""),
    ],
)
def test_between(parsed: Parsed, caption: str, text: str, positive: str, negative: str) -> None:
    assert (
        (positive in positive_flaw(parsed(caption), text))
        if positive
        else not positive_flaw(parsed(caption), text)
    )
    assert negative_flaw(parsed(caption), text) == negative


def test_kept() -> None:
    assert kept_share("A red dog on a mat", "a blue cat on the mat") == 0.5
    assert kept_share("A dog on a mat", "I cannot help with that") == 0
    assert (
        kept_share("A red dog on a mat", "a red cat on the mat")
        == kept_share("A dog", "A cat")
        == 1
    )
    assert kept_share("the", "anything") == 1


WORDS = ["a", "two", "dog", "dogs", "cat", "and", "red", "big", "on", "by", "no", "rides", "xyz"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join)


@given(caption=TEXTS, text=TEXTS)
def test_any_words(caption: str, text: str) -> None:
    bare = Parse("id", 0, caption, (), (), (), (), ())
    assert 0 <= kept_share(caption, text) <= 1
    assert positive_flaw(bare, caption) == "" and negative_flaw(bare, caption)
    # Nothing is a positive and a negative with certainty but additions and unknown words.
    if not positive_flaw(bare, text) and not negative_flaw(bare, text):
        assert "xyz" in f"{caption} {text}" or {"rides", "on", "by", "and"} & set(text.split())


def words(text: str) -> list[str]:
    return [one.word for one in content_words(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A dog is next to the fire hydrant.", ["dog", "next to", "fire hydrant"]),
        ("The man's TWO red-haired dogs", ["man", "two", "red haired", "dogs"]),
        ("2 dogs & 12 cats", ["two", "dogs", "and", "12", "cats"]),
        ("a man who isn't there, with his dog", ["man", "not", "with", "he", "dog"]),
        ("A black and white cow", ["black", "and", "white", "cow"]),
        ("...", []),
        ("", []),
    ],
)
def test_contents(text: str, found: list[str]) -> None:
    assert words(text) == found


@pytest.mark.parametrize(
    ("one", "other", "how"),
    [
        ("couch", "sofa", "same"),
        ("sits", "sitting", "same"),
        ("close to", "near", "same"),
        ("dog", "puppy", "agree"),
        ("dog", "cat", "exclude"),
        ("dog", "dogs", "exclude"),
        ("walk", "walks", "exclude"),  # that they may be verbs is beside the point
        ("two", "three", "exclude"),
        ("red", "blue", "exclude"),
        ("left of", "right of", "exclude"),
        ("his", "her", "exclude"),
        ("dog", "spoon", "nothing"),
        ("dog", "walking", "nothing"),
        ("dog", "qwertz", "nothing"),
        ("qwertz", "QWERTZ", "same"),
    ],
)
def test_relations(one: str, other: str, how: str) -> None:
    (a,), (b,) = content_words(one), content_words(other)
    found = {
        "same": same_meaning(a, b),
        "agree": may_both_be_true(a, b),
        "exclude": mutually_exclusive(a, b),
    }
    wanted = {"same": {"same", "agree"}, "nothing": set()}.get(how, {how})
    assert {name for name, holds in found.items() if holds} == wanted
    assert (same_meaning(b, a), may_both_be_true(b, a), mutually_exclusive(b, a)) == tuple(
        found.values()
    )


def test_kinds_of_words() -> None:
    dog, walking, unknown, no, near, hound = content_words("dog sitting qwertz without near hound")
    assert dog.names_thing and dog.is_described and not dog.is_verb_or_preposition
    assert walking.is_verb_or_preposition and not walking.names_thing
    assert unknown.names_thing and not unknown.is_described
    # A word of the lexicon, which says nothing of it.
    assert hound.names_thing and not hound.is_described
    assert no.negates and not no.names_thing
    assert near.may_be("ADP")
