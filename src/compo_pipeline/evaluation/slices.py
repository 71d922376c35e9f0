"""Slices of the benchmark items: those with an attribute, an object, a relation, a text length.

A slice is named by its kind and value, as in `attribute=red`, and is of the item's first right
text. `binding` says whether the (attribute, object) pairs that this text has and the wrong ones
lack all occur in the training captions, and the reverse: a model can solve an item of which it has
seen the right pairs alone without binding anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from compo_pipeline.benchmarks import foils, retrieval
from compo_pipeline.benchmarks.items import Item, Subtask, items_by_key
from compo_pipeline.core.records import Parse, ScoredItem
from compo_pipeline.evaluation.settings import SliceKind
from compo_pipeline.language.concepts import Binding, bindings, objects, relations

Parser = Callable[[Iterable[str]], Mapping[str, Parse]]
"""Distinct texts to their parses."""

ItemSlices = Mapping[tuple[str, str, str], Sequence[str]]
"""Benchmark, subtask and item to the slices that the item is in."""

BINDING = "binding="

_LONGEST = (5, 10, 15, 20)
# Benchmarks whose items are made of caption rows.
_OF_ROWS = (foils.NAME, retrieval.NAME)


def item_slices(
    subtasks: Iterable[Subtask],
    kinds: Set[SliceKind],
    parser: Parser,
    captions: Iterable[str] = (),
    source_of: Mapping[str, str] = MappingProxyType({}),
) -> ItemSlices:
    """Names of the slices (such as attribute=red) that each benchmark item belongs to.

    Items of zero-shot classification have no text and are in none.

    Args:
        subtasks: subtasks with their items.
        kinds: kinds of slices.
        parser: is called only for kinds that need parses.
        captions: training captions, for slices of the kind `binding`.
        source_of: images of caption rows to their sources, for `source`.
    """
    tasks = [task for task in subtasks if not task.classes]
    read = [text for task in tasks for item in task.items for text in _texts_to_parse(item, kinds)]
    parses = parser(dict.fromkeys(read)) if read else {}
    seen: set[Binding] = set()
    if "binding" in kinds:
        for parse in parser(dict.fromkeys(captions)).values():
            seen.update(bindings(parse))
    found = {}
    for task in tasks:
        of_rows = source_of if task.benchmark in _OF_ROWS else {}
        for item in task.items:
            names = (
                f"{kind}={value}"
                for kind in sorted(kinds)
                for value in _slices_of_kind(kind, item, parses, seen, of_rows)
            )
            found[task.benchmark, task.name, item.item] = tuple(dict.fromkeys(names))
    return found


def scored_items(
    subtasks: Iterable[Subtask], slices: ItemSlices = MappingProxyType({})
) -> Iterator[ScoredItem]:
    """Yield each benchmark item with its slices, as a record to store."""
    for key in items_by_key(subtasks):
        yield ScoredItem(*key, tuple(slices.get(key, ())))


def _texts_to_parse(item: Item, kinds: Set[SliceKind]) -> tuple[str, ...]:
    """The texts of an item that must be parsed for the given kinds of slices."""
    if not kinds - {"length", "source"}:
        return ()
    return item.positives[:1] + (item.negatives if "binding" in kinds else ())


def _slices_of_kind(
    kind: SliceKind,
    item: Item,
    parses: Mapping[str, Parse],
    seen: Set[Binding],
    source_of: Mapping[str, str],
) -> Iterator[str]:
    """Yield the values of one kind of slice for an item, such as its attributes."""
    text = item.positives[0]
    if kind == "source":
        yield from filter(None, [source_of.get(item.image)])
    elif kind == "length":
        yield _length_range(len(text.split()))
    elif kind == "binding":
        right = set(bindings(parses[text]))
        wrong = {pair for each in item.negatives for pair in bindings(parses[each])}
        yield f"right {_novelty(right - wrong, seen)}, wrong {_novelty(wrong - right, seen)}"
    elif kind == "attribute":
        yield from (pair.attribute for pair in bindings(parses[text]))
    else:
        yield from (objects if kind == "object" else relations)(parses[text])


def _novelty(pairs: Set[Binding], seen: Set[Binding]) -> str:
    """Text "none" without (attribute, noun) pairs, "seen" if all are in `seen`, else "unseen"."""
    if not pairs:
        return "none"
    return "seen" if pairs <= seen else "unseen"


def _length_range(words: int) -> str:
    """Name of the length range that contains a number of words, such as "6-10 words"."""
    place = bisect_left(_LONGEST, words)
    if place == len(_LONGEST):
        return f"{_LONGEST[-1] + 1}+ words"
    return f"{_LONGEST[place - 1] + 1 if place else 1}-{_LONGEST[place]} words"
