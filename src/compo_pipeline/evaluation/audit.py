"""What stands behind a figure: items left out, items that cannot be told apart, texts cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compo_pipeline.evaluation.benchmarks.items import Item, Subtask
from compo_pipeline.evaluation.embed import Embedded, Tokens

_EXAMPLES = 50


@dataclass(frozen=True, slots=True)
class Degenerate:
    """An item that no model can get right: two of its texts that must differ are the same.

    `kind` is `equal text`, or `equal tokens` where the texts differ but the model's tokenizer
    (lower-casing, truncation) makes them one. In retrieval the other text is another image's.
    """

    item: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The state of one subtask's items under the base model's tokenizer.

    `reasons` counts the items whose image could not be used, by reason; `texts` are distinct.
    `examples` are the first of the `degenerate` items.
    """

    benchmark: str
    subtask: str
    items: int
    skipped: int
    reasons: dict[str, int]
    texts: int
    truncated: int
    degenerate: int
    examples: tuple[Degenerate, ...]


def left_out(audits: Sequence[Audit], benchmarks: Mapping[str, str]) -> list[str]:
    """Return a line for each benchmark with items that were skipped, cut short or degenerate.

    Args:
        audits: of all subtasks.
        benchmarks: their names for readers.
    """
    lines = []
    for benchmark in dict.fromkeys(audit.benchmark for audit in audits):
        own = [audit for audit in audits if audit.benchmark == benchmark]
        items, skipped = sum(a.items for a in own), sum(a.skipped for a in own)
        parts = []
        if skipped:
            reasons = sorted({reason for audit in own for reason in audit.reasons})
            parts.append(
                f"{skipped:,} of {items:,} items have no usable image ({', '.join(reasons)})"
            )
        if degenerate := sum(a.degenerate for a in own):
            parts.append(f"{degenerate:,} cannot be told apart by any model")
        if truncated := sum(a.truncated for a in own):
            parts.append(f"{truncated:,} of {sum(a.texts for a in own):,} texts were cut")
        if parts:
            lines.append(f"{benchmarks.get(benchmark, benchmark)}: " + "; ".join(parts))
    return lines


def audit(subtask: Subtask, embedded: Embedded) -> Audit:
    """Count and list what a reader of the figures should know."""
    paths = (str(subtask.path(item)) for item in subtask.items)
    found = [embedded.unreadable[path] for path in paths if path in embedded.unreadable]
    reasons = Counter(reason.split(":", 1)[0] for reason in found)
    texts = list(dict.fromkeys(subtask.texts()))
    tokens = embedded.tokens
    degenerate = list(_degenerate(subtask, tokens))
    return Audit(
        benchmark=subtask.benchmark,
        subtask=subtask.name,
        items=len(subtask.items),
        skipped=len(found),
        reasons=dict(reasons),
        texts=len(texts),
        truncated=sum(bool(tokens.truncated[tokens.index[text]]) for text in texts),
        degenerate=len(degenerate),
        examples=tuple(degenerate[:_EXAMPLES]),
    )


def _degenerate(subtask: Subtask, tokens: Tokens) -> Iterator[Degenerate]:
    if "retrieval" in subtask.protocols:
        return _shared_captions(subtask.items, tokens)
    if "image_to_text" in subtask.protocols:
        return _equal_sides(subtask.items, tokens)
    return iter(())


def _equal_sides(items: Iterable[Item], tokens: Tokens) -> Iterator[Degenerate]:
    for item in items:
        pairs = [(right, wrong) for right in item.positives for wrong in item.negatives]
        for right, wrong in pairs:
            if right == wrong:
                yield Degenerate(item.item, "equal text", right)
                break
            if _ids(right, tokens) == _ids(wrong, tokens):
                yield Degenerate(item.item, "equal tokens", f"{right} | {wrong}")
                break


def _shared_captions(items: Sequence[Item], tokens: Tokens) -> Iterator[Degenerate]:
    owners: dict[bytes, set[str]] = {}
    texts: dict[bytes, set[str]] = {}
    for item in items:
        for text in item.positives:
            owners.setdefault(_ids(text, tokens), set()).add(item.item)
            texts.setdefault(_ids(text, tokens), set()).add(text)
    for item in items:
        for text in item.positives:
            if len(owners[_ids(text, tokens)]) > 1:
                equal = len(texts[_ids(text, tokens)]) == 1
                yield Degenerate(item.item, "equal text" if equal else "equal tokens", text)


def _ids(text: str, tokens: Tokens) -> bytes:
    ids: bytes = tokens.ids[tokens.index[text]].numpy().tobytes()
    return ids
