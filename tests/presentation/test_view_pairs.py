"""Synthetic pairs of views, told and counted."""

from dataclasses import replace

from compo_pipeline.presentation.view_pairs import (
    PairTally,
    RoleTally,
    Side,
    kind,
    sides,
    tally,
)
from compo_pipeline.records import View

ORIGINS = [{"generator": "rules", "category": "swap, noun: cat > dog", "words": []}]
VIEW = View(
    *("a", "single", ("a",), ("a.png",), None, ("A cat sees a dog.", "A cat, a dog seen.")),
    *(("A dog sees a cat.",), (), (), ("n.png", "p.png"), "{}"),
)


def test_new_words_are_told_against_the_caption_alone() -> None:
    """The retold caption is nearer to this negative than the caption is."""
    texts = ("A red cat sits.", "A red dog sits there.")
    negative, positive = sides(
        replace(VIEW, positives=texts, negatives=("A red dog sits.",)), ORIGINS
    )
    pieces = (("A red ", False), ("dog", True), (" sits.", False))
    assert negative == Side("negative", pieces, ("cat",), "swap, noun", "n.png")
    assert [piece for piece, new in positive.pieces if new] == ["dog", "there"]
    assert (positive.gone, positive.kind, positive.image) == (("cat",), "", "p.png")


def test_words_that_are_only_gone_are_told() -> None:
    negative, _ = sides(replace(VIEW, negatives=("A cat sees.",)), ORIGINS)
    assert negative.pieces == (("A cat sees.", False),) and negative.gone == ("a dog",)


def test_what_is_absent_is_empty() -> None:
    bare = replace(VIEW, positives=("A cat.",), negatives=(None,), counterfactuals=("", ""))
    assert sides(bare, [None]) == (
        Side("negative", (), (), "", ""),
        Side("positive", (), (), "", ""),
    )
    assert sides(replace(VIEW, counterfactuals=()), ORIGINS) == ()


def test_kind_is_the_category_up_to_its_words() -> None:
    assert kind(ORIGINS) == "swap, noun"
    assert kind([{"category": "replace_kind"}]) == "replace_kind"
    assert kind([None]) == kind([]) == ""


def test_views_are_counted_by_what_they_have() -> None:
    views = [
        VIEW,
        replace(VIEW, counterfactuals=("", "p.png")),
        replace(VIEW, negatives=(None,), counterfactuals=("", "p.png")),
        replace(VIEW, positives=VIEW.positives[:1], counterfactuals=("n.png", "")),
        replace(VIEW, counterfactuals=()),
    ]
    origins = [ORIGINS, ORIGINS, [None], ORIGINS, ORIGINS]
    assert tally(views, origins) == PairTally(
        roles=(RoleTally("negative", 3, 2, 2), RoleTally("positive", 3, 3, 3)),
        whole=1,
        kinds=(("swap, noun", 3),),
    )
    assert tally(views[-1:], [ORIGINS]) is None
    assert tally([], []) is None
