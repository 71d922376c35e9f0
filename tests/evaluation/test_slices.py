from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.comparison import Row, compare_slices, run_pairs
from compo_pipeline.evaluation.settings import SliceKind
from compo_pipeline.evaluation.slices import item_slices
from compo_pipeline.language.parsing import SHIPPED, parses_of

PARSER = partial(parses_of, SHIPPED)
SWAPPED = Item(
    "0", "0.jpg", ("a red heart left of a striped key",), ("a striped heart left of a red key",)
)


def _subtask(*items: Item) -> Subtask:
    return Subtask("b", "s", ("image_to_text",), Path(), items)


def _of(item: Item, kind: SliceKind, captions: Iterable[str] = ()) -> list[str]:
    found = item_slices([_subtask(item)], {kind}, PARSER, captions)
    return [name.removeprefix(f"{kind}=") for name in found["b", "s", item.item]]


def test_slices_are_of_the_first_right_text() -> None:
    assert _of(SWAPPED, "attribute") == ["red", "striped"]
    assert _of(SWAPPED, "object") == ["heart", "key"]
    assert _of(SWAPPED, "relation") == ["left of"]
    assert _of(SWAPPED, "length") == ["6-10 words"]


@pytest.mark.parametrize(("words", "name"), [(1, "1-5"), (5, "1-5"), (6, "6-10"), (21, "21+")])
def test_lengths_are_in_bins(words: int, name: str) -> None:
    assert _of(Item("0", "0.jpg", ("a " * words,)), "length") == [f"{name} words"]


@pytest.mark.parametrize(
    ("captions", "known"),
    [
        (["a red heart", "The striped key."], "right seen, wrong unseen"),
        (["a red key and a STRIPED heart"], "right unseen, wrong seen"),
        (["a red heart, a striped key, a red key and a striped heart"], "right seen, wrong seen"),
        (["a red heart"], "right unseen, wrong unseen"),
    ],
)
def test_a_binding_is_known_if_all_its_pairs_are_in_the_captions(
    captions: list[str], known: str
) -> None:
    assert _of(SWAPPED, "binding", captions) == [known]


def test_texts_with_the_same_pairs_have_no_binding_to_know() -> None:
    item = Item("0", "0.jpg", ("a red heart above a key",), ("a red heart below a key",))
    assert _of(item, "binding", ["a red heart"]) == ["right none, wrong none"]


def test_items_of_caption_rows_have_a_source() -> None:
    """Those of foils and retrieval; an image of another benchmark may have the same name."""
    items = tuple(Item(str(k), f"{k}.jpg", ("a red heart",)) for k in range(2))
    tasks = [Subtask(name, "s", (), Path(), items) for name in ("foils", "retrieval", "other")]
    found = item_slices(tasks, {"source"}, PARSER, source_of={"0.jpg": "web"})
    assert {key: names for key, names in found.items() if names} == {
        (name, "s", "0"): ("source=web",) for name in ("foils", "retrieval")
    }


def _scores(model: str, right: Iterable[bool]) -> list[Score]:
    return [
        Score(model, "b", "s", "accuracy", str(k), f"{k}.jpg", (), verdict, None)
        for k, verdict in enumerate(right)
    ]


def test_models_are_compared_within_each_slice() -> None:
    slices = {
        ("b", "s", str(k)): ("odd=yes", "all=yes") if k % 2 else ("all=yes",) for k in range(8)
    }
    scores = _scores("base", [False] * 8) + _scores("clic", [k % 2 > 0 for k in range(8)])
    models = {"base": "base", "fine_tuned": "clic"}

    def compared(smallest: int) -> dict[str, Row]:
        rows = compare_slices([scores], models, run_pairs(models), slices, smallest)
        return {row.slice: row for row in rows if row.name == "s"}

    found = compared(4)
    assert {name: (row.items, row.difference.value) for name, row in found.items()} == {
        "all=yes": (8, 50),
        "odd=yes": (4, 100),
    }
    assert set(compared(5)) == {"all=yes"}


def test_captions_of_an_item_are_in_its_slices() -> None:
    scores = [
        Score(model, "retrieval", "raw", "t2i_r1", f"0#{k}", "0.jpg", (), True, None)
        for model in ("base", "clic")
        for k in range(2)
    ]
    models = {"base": "base", "fine_tuned": "clic"}
    slices = {("retrieval", "raw", "0"): ("object=dog",)}
    (row,) = compare_slices([scores], models, run_pairs(models), slices, 1)
    assert (row.slice, row.items) == ("object=dog", 2)
