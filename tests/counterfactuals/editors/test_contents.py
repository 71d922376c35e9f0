"""Words of a text, their readings, and what the lexicon says of two of them."""

import pytest

from compo_pipeline.counterfactuals.editors.contents import agree, contents, exclude, same


def words(text: str) -> list[str]:
    return [one.word for one in contents(text)]


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
    (a,), (b,) = contents(one), contents(other)
    found = {"same": same(a, b), "agree": agree(a, b), "exclude": exclude(a, b)}
    wanted = {"same": {"same", "agree"}, "nothing": set()}.get(how, {how})
    assert {name for name, holds in found.items() if holds} == wanted
    assert (same(b, a), agree(b, a), exclude(b, a)) == tuple(found.values())


def test_kinds_of_words() -> None:
    dog, walking, unknown, no, near, hound = contents("dog sitting qwertz without near hound")
    assert dog.thing and dog.known and not dog.links
    assert walking.links and not walking.thing
    assert unknown.thing and not unknown.known
    # A word of the lexicon, which says nothing of it.
    assert hound.thing and not hound.known
    assert no.denies and not no.thing
    assert near.may_be("ADP")
