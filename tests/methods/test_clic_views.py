"""CLIC's views, word by word on captions small enough to see all that may come out."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from compo_pipeline.core.records import Caption, Parse, View
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews, join
from compo_pipeline.methods.contract import ViewContext

CAT = "A/DET red/ADJ cat/NOUN sleeps/VERB ./PUNCT"
DOG = "The/DET blue/ADJ dog/NOUN runs/VERB ./PUNCT"

Draw = Callable[..., list[View]]


@pytest.fixture
def draw(parse: Callable[[str, str], Parse]) -> Draw:
    """Views of captions whose first sentences are given as tagged text by sample."""

    def views(
        captions: list[Caption],
        tagged: dict[str, str],
        seed: int = 0,
        epoch: int = 0,
        **settings: str,
    ) -> list[View]:
        parses = {sample_id: parse(sample_id, text) for sample_id, text in tagged.items()}
        method = Clic(ClicViews(**settings), ClicObjective())  # type: ignore[arg-type]
        return list(method.views(captions, ViewContext(parses, "compo_en==1", seed, epoch)))

    return views


@pytest.fixture
def two(caption: Callable[..., Caption]) -> list[Caption]:
    """Two wide images: each is the other's only possible partner."""
    return [
        caption("cat", CAT, "It has fur.", "Its bed is warm.", "A lamp shines."),
        caption("dog", DOG, "It is wet", "A ball lies there!", "The sky is grey..."),
    ]


TWO = {"cat": CAT, "dog": DOG}


def test_a_composite_by_hand(draw: Draw, two: list[Caption]) -> None:
    view, other = draw(two, TWO)
    assert (view.sample_id, view.kind, view.axis) == ("cat", "composite", "vertical")
    assert view.sample_ids == ("cat", "dog")
    assert sorted(view.images) == ["cat.png", "dog.png"]
    assert view.positives[0] == "A red cat sleeps. The blue dog runs."
    assert view.positives[1] == "The blue dog runs. A red cat sleeps."
    assert len(view.positives) == 5 and len(view.negatives) == 1
    assert (view.phrases, view.counterfactuals) == ((), ())
    assert other.sample_ids == ("dog", "cat")
    assert other.positives[0] == "The blue dog runs. A red cat sleeps."


def test_further_sentences_come_in_random_order_without_repetition(
    draw: Draw, two: list[Caption]
) -> None:
    of_cat = {"It has fur.", "Its bed is warm.", "A lamp shines."}
    of_dog = {"It is wet.", "A ball lies there.", "The sky is grey."}
    orders = Counter()
    for epoch in range(40):
        pairs = [positive.split(". ") for positive in draw(two, TWO, epoch=epoch)[0].positives[2:]]
        pairs = [[first + ".", second] for first, second in pairs]
        for pair in pairs:
            assert len(of_cat & set(pair)) == len(of_dog & set(pair)) == 1
            orders[pair[0] in of_cat] += 1
        assert {sentence for pair in pairs for sentence in pair} == of_cat | of_dog
    assert min(orders.values()) > 30 and len(orders) == 2


def test_too_few_further_sentences_come_again(draw: Draw, caption: Callable[..., Caption]) -> None:
    captions = [caption("cat", CAT, "It has fur.", "It purrs."), caption("dog", DOG)]
    view = draw(captions, TWO)[0]
    halves = [set(positive.replace(". ", ".|").split("|")) for positive in view.positives[2:]]
    # Two of the cat are used up before one comes again; the dog has none and repeats its first.
    assert {"It has fur.", "It purrs."} == set.union(*halves[:2]) - {"The blue dog runs."}
    assert all("The blue dog runs." in half for half in halves)


@pytest.mark.parametrize("end", ["", ".", "...", "!", "?", " . ", "!?", ";", ".\t"])
def test_sentences_end_in_one_period_and_one_space_joins_them(end: str) -> None:
    assert join(f"A cat{end.rstrip(chr(9))}", "Two dogs.") == "A cat. Two dogs."


def test_the_negative_swaps_one_common_category(draw: Draw, two: list[Caption]) -> None:
    seen = set()
    for epoch in range(60):
        view = draw(two, TWO, epoch=epoch)[0]
        told = json.loads(view.provenance)
        (origin,) = told["negatives"]
        assert origin["generator"] == "swap_across" and told["language"] == "compo_en==1"
        seen.add((view.negatives[0], origin["category"], tuple(origin["words"])))
    first = {
        ("ADJ", ("red", "blue")): ("A blue cat sleeps.", "The red dog runs."),
        ("NOUN", ("cat", "dog")): ("A red dog sleeps.", "The blue cat runs."),
        ("VERB", ("sleeps", "runs")): ("A red cat runs.", "The blue dog sleeps."),
    }
    expected = {
        (" ".join(order), category, words)
        for (category, words), pair in first.items()
        for order in (pair, pair[::-1])
    }
    assert seen == expected


def test_display_order_is_random_and_the_anchor_stays_first(draw: Draw, two: list[Caption]) -> None:
    views = [view for epoch in range(40) for view in draw(two, TWO, epoch=epoch)]
    assert {view.images for view in views} == {("cat.png", "dog.png"), ("dog.png", "cat.png")}
    assert all(view.sample_ids[0] == view.sample_id for view in views)


def test_partners_share_the_orientation_and_show_another_image(
    draw: Draw, caption: Callable[..., Caption]
) -> None:
    captions = [
        *(caption(f"w{i}", CAT, "It is.", image=f"wide{i // 2}") for i in range(6)),
        *(caption(f"t{i}", DOG, "It is.", image=f"tall{i // 2}", tall=True) for i in range(6)),
    ]
    tagged = {row.sample_id: CAT if row.sample_id[0] == "w" else DOG for row in captions}
    by_id = {row.sample_id: row for row in captions}
    met = set()
    for epoch in range(30):
        for view in draw(captions, tagged, epoch=epoch):
            anchor, partner = (by_id[name] for name in view.sample_ids)
            assert anchor.image_id != partner.image_id
            assert (anchor.width, anchor.height) == (partner.width, partner.height)
            assert view.axis == ("vertical" if anchor.width >= anchor.height else "horizontal")
            met.add(view.sample_ids)
    assert len(met) == 2 * 6 * 4  # every row with every row of the two other images


def test_a_square_image_is_wide(draw: Draw, two: list[Caption]) -> None:
    square = [replace(row, width=30, height=30) for row in two]
    assert {view.axis for view in draw(square, TWO)} == {"vertical"}
    mixed = [replace(two[0], width=30, height=30), two[1]]
    assert len(draw(mixed, TWO)) == 2


def test_without_a_possible_partner_there_is_no_view(
    draw: Draw, two: list[Caption], caption: Callable[..., Caption]
) -> None:
    alone = caption("tall", CAT, "It has fur.", tall=True)
    twin = caption("twin", CAT, "It has fur.", image="tall", tall=True)
    views = draw([alone, *two, twin], {**TWO, "tall": CAT, "twin": CAT})
    assert [view.sample_id for view in views] == ["cat", "dog"]


def test_a_negative_that_cannot_be_made_is_null(
    draw: Draw, caption: Callable[..., Caption]
) -> None:
    captions = [caption("a", "Cats/NOUN ./PUNCT", "x y."), caption("b", "cats/NOUN", "z.")]
    view = draw(captions, {"a": "Cats/NOUN ./PUNCT", "b": "cats/NOUN"})[0]
    assert view.negatives == (None,)
    assert json.loads(view.provenance) == {"language": "compo_en==1", "negatives": [None]}


def test_views_hang_on_seed_epoch_and_sample_alone(
    draw: Draw, caption: Callable[..., Caption]
) -> None:
    captions = [
        caption(f"s{i:02d}", CAT, *(f"Sentence {k} of {i}." for k in range(4))) for i in range(20)
    ]
    tagged = {row.sample_id: (CAT, DOG)[i % 2] for i, row in enumerate(captions)}
    views = {view.sample_id: view for view in draw(captions, tagged)}
    shuffled = random.Random(1).sample(captions, len(captions))
    again = draw(shuffled, tagged)
    assert [view.sample_id for view in again] == [row.sample_id for row in shuffled]
    assert {view.sample_id: view for view in again} == views
    for other in (draw(captions, tagged, epoch=1), draw(captions, tagged, seed=1)):
        assert sum(view != views[view.sample_id] for view in other) > 15


def test_partners_of_a_shared_noun(draw: Draw, caption: Callable[..., Caption]) -> None:
    cats = [caption(f"cat{i}", CAT, "It is.") for i in range(9)]
    dogs = [caption(f"dog{i}", DOG, "It is.") for i in range(9)]
    odd = caption("odd", "Odd/ADJ things/NOUN", "It is.")
    captions = [*cats, *dogs, odd]
    tagged = {row.sample_id: CAT if row in cats else DOG for row in captions}
    tagged["odd"] = "Odd/ADJ things/NOUN"
    partners: dict[str, set[str]] = {row.sample_id: set() for row in captions}
    for epoch in range(40):
        for view in draw(captions, tagged, epoch=epoch, partners="shared_noun"):
            partners[view.sample_id].add(view.sample_ids[1])
    for name, met in partners.items():
        if name != "odd":
            assert {other[:3] for other in met} == {name[:3]}
            assert len(met) == 5  # its five, epoch after epoch, though one noun is shared by nine
    assert len(partners["odd"]) > 5  # shares a noun with nobody: any partner


def test_the_authors_way_with_repeated_words(draw: Draw, caption: Callable[..., Caption]) -> None:
    first, second = "red/ADJ on/ADP red/ADJ", "old/ADJ"
    captions = [caption("a", first, "x."), caption("b", second, "y.")]
    tagged = {"a": first, "b": second}
    drawn = {
        how: {draw(captions, tagged, epoch=e, occurrence=how)[0].negatives[0] for e in range(40)}
        for how in ("drawn", "all")
    }
    assert {text for text in drawn["drawn"] if text.count("old") != 1} == set()
    assert drawn["all"] == {"old on old. red.", "red. old on old."}


def test_composites_with_a_swap_within_the_first_caption(draw: Draw, two: list[Caption]) -> None:
    for epoch in range(20):
        (negative,) = draw(two, TWO, epoch=epoch, swap="within")[0].negatives
        assert negative is not None and "The blue dog runs." in negative
        assert "A red cat sleeps." not in negative


def test_single_images(draw: Draw, two: list[Caption]) -> None:
    seen = set()
    for epoch in range(20):
        view = draw(two, TWO, epoch=epoch, images="single", swap="within")[0]
        assert (view.kind, view.sample_ids, view.images) == ("single", ("cat",), ("cat.png",))
        assert view.axis is None
        assert view.positives[:2] == ("A red cat sleeps.", "A red cat sleeps.")
        assert set(view.positives[2:]) == {"It has fur.", "Its bed is warm.", "A lamp shines."}
        assert json.loads(view.provenance)["negatives"][0]["generator"] == "swap_within"
        (negative,) = view.negatives
        assert negative is not None
        assert negative.lower() != "a red cat sleeps."
        assert sorted(negative.lower().strip(".").split()) == ["a", "cat", "red", "sleeps"]
        seen.add(negative)
    assert len(seen) > 1


def test_single_images_cannot_swap_across() -> None:
    with pytest.raises(ValueError, match="images: single needs swap: within"):
        ClicViews(images="single")
