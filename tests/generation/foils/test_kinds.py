"""Drafts of foils of photographs' captions, by their words, and reasons to drop one."""

from collections import Counter

import pytest

from compo_pipeline.generation.foils.kinds import DISAGREE, NAMED, STATED, SYNONYM, Draft, drafts
from compo_pipeline.generation.foils.settings import KINDS
from compo_pipeline.language.parsing import parses_of

from .conftest import Photographs


def drafted(*captions: str) -> list[Draft]:
    parses = parses_of("compo_en", captions)
    return list(drafts([parses[text] for text in captions], KINDS))


def problems(found: list[Draft], kind: str, foil: str) -> set[str]:
    return {draft.problem for draft in found if draft.kind == kind and draft.texts[1] == foil}


def words(text: str) -> Counter[str]:
    marks = str.maketrans(dict.fromkeys(".,;:!?\"'-()/", " "))
    folded = text.casefold().translate(marks).split()
    return Counter("a" if word == "an" else word for word in folded)


def test_a_foil_has_other_words_where_it_says_so_and_no_others(photographs: Photographs) -> None:
    seen = Counter[str]()
    for captions in list(photographs.values())[:40]:
        texts = list(dict.fromkeys(captions))
        for draft in drafted(*texts):
            caption, foil = draft.texts
            exchanged = draft.kind.startswith("swapped")
            own, other = (Counter[str](), Counter[str]()) if exchanged else map(words, draft.words)
            assert words(caption) - words(foil) == own - other, draft
            assert words(foil) - words(caption) == other - own, draft
            if draft.kind.startswith(("swapped", "replaced")):
                assert caption == texts[draft.sentence]
            if not draft.problem:
                seen[draft.kind] += 1
                assert foil.casefold().strip(" .") not in {
                    each.casefold().strip(" .") for each in texts
                }
    assert seen.keys() == set(KINDS)


@pytest.mark.parametrize(
    ("captions", "kind", "foil", "problem"),
    [
        (["A brown dog sits on a sofa."], "replaced_object", "A brown cat sits on a sofa.", ""),
        (
            ["A brown dog sits on a sofa.", "The cat is here."],
            "replaced_object",
            "A brown cat sits on a sofa.",
            NAMED,
        ),
        # A kitten is a cat.
        (
            ["A brown dog sits on a sofa.", "Here is a kitten."],
            "replaced_object",
            "A brown cat sits on a sofa.",
            SYNONYM,
        ),
        # "grey" is "gray".
        (
            ["A red car on a road.", "A grey van."],
            "replaced_attribute",
            "A gray car on a road.",
            SYNONYM,
        ),
        (
            ["A cat is on a table.", "A cat sleeping under the table."],
            "replaced_relation",
            "A cat is under a table.",
            STATED,
        ),
        (
            ["A red car and a blue van.", "A blue car on a road."],
            "swapped_attributes",
            "A blue car and a red van.",
            STATED,
        ),
        (["A car on a road.", "A red car."], "added_attribute", "A blue car on a road.", ""),
        (
            ["A car on a road.", "A red car.", "The white car."],
            "added_attribute",
            "A blue car on a road.",
            DISAGREE,
        ),
        (["A brown dog on a red sofa."], "half_truth", "a brown dog and a blue sofa", ""),
    ],
)
def test_what_captions_say_makes_a_foil_true(
    captions: list[str], kind: str, foil: str, problem: str
) -> None:
    assert problems(drafted(*captions), kind, foil) == {problem}


@pytest.mark.parametrize(
    "foil",
    [
        "A sofa near a chair.",  # near one another either way
        "A large red car and a blue van.",
        "Dogs and cats.",
    ],
)
def test_what_is_as_true_as_before_is_no_draft(foil: str) -> None:
    captions = ["A chair near a sofa.", "A red large car and a blue van.", "Cats and dogs."]
    for caption in captions:
        swapped = [draft for draft in drafted(caption) if draft.kind.startswith("swapped")]
        assert foil not in {draft.texts[1] for draft in swapped}
