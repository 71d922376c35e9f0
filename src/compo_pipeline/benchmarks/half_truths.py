"""Half-truths: a caption, the same with a true detail added, and with a false one.

`<subset>.parquet` or `<subset>.jsonl` with the columns image, anchor (the caption), full_truth,
half_truth and triplet_type (entity or relation). `image` names an image; the authors' Parquet
files hold them.

`build` makes such rows of any captions, by the authors' construction: for an entity the anchor is
another entity of the caption and the detail is "and ..."; for a relation the anchor is its subject.
Where the authors ask a language model, units and foils are those of `language.units`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path

from compo_pipeline.benchmarks.averages import Mean
from compo_pipeline.benchmarks.files import Record, read_files, subtasks_of
from compo_pipeline.benchmarks.items import Benchmark, Item, Subtask
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.language.editing import Phrase, written
from compo_pipeline.language.replacements import shipped
from compo_pipeline.language.units import foil, units
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption, HalfTruth, Parse
from compo_pipeline.storage.untrusted import shown

NAME = "half_truths"
BUILT = "captions"
SUBSETS = ("coco_qwen", "coco_mistral", "cc3m_qwen", BUILT)
KINDS = ("entity", "relation")
_DRAWS = 8  # of a foil, before a relation is given up

Parser = Callable[[Iterable[str]], Mapping[str, Parse]]
"""Distinct texts to their parses."""


def load(root: Path, images: Path) -> list[Subtask]:
    """Read every file in the folder, a subtask for each kind of detail."""
    found = []
    for file in read_files(root, "*.parquet", "*.jsonl"):
        named = file.where.endswith(".jsonl") or "image" in file.content[0]
        items = _items(file, None if named else Path(file.where).relative_to(root))
        found += subtasks_of(NAME, "half_truth", images if named else root, items)
    return found


def _items(file: Record, inside: Path | None) -> Iterator[tuple[str, Item]]:
    """The items of a file, which may have the images `inside`."""
    for record in file.records():
        anchor, full, half, kind = map(
            record.text, ("anchor", "full_truth", "half_truth", "triplet_type")
        )
        if kind not in KINDS:
            raise SettingsError(
                f"{record.where}: expected a triplet_type of {', '.join(KINDS)}, got {shown(kind)}"
            )
        image = f"{inside}/image/{record.name}" if inside else record.text("image")
        yield f"{file.name}_{kind}", Item(record.name, image, (full, anchor), (half,))


def build(captions: Iterable[Caption], split: str, parser: Parser) -> list[HalfTruth]:
    """At most one entity and one relation of each image of a split.

    Args:
        captions: with images and sentences; the first sentence of each is read.
        split: whose images are taken.
        parser: distinct texts to their parses.

    Raises:
        SettingsError: no caption gives one.
    """
    rows = [row for row in captions if row.split == split and row.sentences]
    parses = parser(dict.fromkeys(row.sentences[0] for row in rows))
    found: dict[tuple[str, str], HalfTruth] = {}
    for row in rows:
        parse = parses[row.sentences[0]]
        for kind, texts in (("entity", _entity), ("relation", _relation)):
            if (row.image_id, kind) not in found and (made := texts(parse)):
                name = f"{row.image_id}_{kind}"
                found[row.image_id, kind] = HalfTruth(name, row.image, *made, kind)
    if not found:
        raise SettingsError(
            f"benchmarks.retrieval.split: no caption of the split '{split}' has two entities or a "
            "relation of which a false one can be made"
        )
    return list(found.values())


def _entity(parse: Parse) -> tuple[str, str, str] | None:
    """Anchor, full truth and half truth of the first two entities of which one has a foil."""
    entities = [unit for unit in units(parse) if unit.category == "entity"]
    for anchor, other in permutations(entities, 2):
        if wrong := foil(parse, other, rng(NAME, parse.text), shipped()):
            start, detail = (_text(parse, unit.phrase) for unit in (anchor, other))
            return start, f"{start} and {detail}", f"{start} and {wrong.text.lower()}"
    return None


def _relation(parse: Parse) -> tuple[str, str, str] | None:
    """The same of the first relation with a foil that keeps the subject, or exchanges it."""
    for unit in units(parse):
        if unit.category == "relation":
            anchor = _text(parse, unit.parts[0])
            for draw in range(_DRAWS):
                wrong = foil(parse, unit, rng(NAME, parse.text, draw), shipped())
                text = wrong.text.lower() if wrong else ""
                if wrong and (wrong.category == "swap" or text.startswith(f"{anchor} ")):
                    return anchor, _text(parse, unit.phrase), text
    return None


def _text(parse: Parse, phrase: Phrase) -> str:
    return written(parse, *phrase).lower()


_TOTALS = {
    subset: Mean(tuple(f"{subset}_{kind}" for kind in KINDS), by_items=True) for subset in SUBSETS
}

BENCHMARK = Benchmark(
    name=NAME,
    role="composition",
    label="Half-Truths",
    load=load,
    headline=lambda metric, name: metric == "half_truth",
    averages=dict.fromkeys(("half_truth", "truth_order"), _TOTALS),
    source="huggingface.co/datasets/kbora/Half-Truths: data/<subset>.parquet, with its images; "
    "or what `kedro run --pipeline=half_truths` builds of captions",
    parts=tuple(f"{subset}_{kind}" for subset in SUBSETS if subset != BUILT for kind in KINDS),
)
