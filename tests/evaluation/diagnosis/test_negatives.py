"""What views ask for, whoever wrote their negatives."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from compo_pipeline.core.records import Caption, View
from compo_pipeline.evaluation.diagnosis.negatives import Negatives, asked_changes
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.methods.views import from_table, single_view

CAPTION = "A red cat sits beside a green dog."


@pytest.fixture
def view() -> Callable[..., View]:
    """A view of a caption with negatives of a table."""

    def make(caption: str, *negatives: str) -> View:
        row = Caption("a", "a", "a.png", 4, 3, (caption,), "test", "train")
        written = [from_table((text, "no")) for text in negatives]
        return single_view(row, (caption,), written, "")

    return make


def test_kinds_are_read_from_the_texts_of_a_table(view: Callable[..., View]) -> None:
    rows = [
        view(CAPTION, "A green cat sits beside a red dog."),
        view(
            CAPTION, "A red cat sits beside a green horse.", "A blue cat sits beside a green dog."
        ),
        view(CAPTION, "Something else altogether."),
        view(CAPTION),
    ]
    asked = asked_changes(
        [Negatives.from_view(row) for row in rows], partial(parses_of, "compo_en")
    )
    assert (asked.captions, asked.negatives) == (4, 4)
    assert asked.asked == {"swapped_attributes": 1, "replaced_object": 1, "replaced_attribute": 1}
    assert asked.shown == {}


def test_of_a_pair_the_anchors_negatives_count(view: Callable[..., View]) -> None:
    made = view(CAPTION, "A blue cat sits beside a green dog.", "Two parks run in a dog.")
    pair = replace(made, kind="pair", positives=(CAPTION, "Two dogs run in a park."))
    assert Negatives.from_view(pair) == (CAPTION, ["A blue cat sits beside a green dog."], False)
    assert len(Negatives.from_view(made).texts) == 2
