"""What a text has changed of a caption, against generators, SugarCrepe's files and the renderer."""

import itertools
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from compo_pipeline.core.seeding import rng
from compo_pipeline.language.changes import change
from compo_pipeline.language.editing import Generator
from compo_pipeline.language.parsing import SHIPPED, parses_of
from compo_pipeline.language.reordering import swap_phrases
from compo_pipeline.language.replacements import replacer
from compo_pipeline.language.swaps import swap_within
from compo_scenes.captions import sentences
from compo_scenes.counterfactuals import edit
from compo_scenes.edits import EDITS
from compo_scenes.world import World

CAREFUL_SWAPS: tuple[Generator, ...] = (
    partial(swap_within, careful=True),
    partial(swap_phrases, careful=True),
)
BY_CATEGORY = {
    "entity": "replaced_object",
    "attribute": "replaced_attribute",
    "relation": "replaced_relation",
}
BY_PART_OF_SPEECH = {
    "ADJ": "swapped_attributes",
    "NOUN": "swapped_objects",
    "NN": "swapped_objects",
    "NNS": "swapped_objects",
}


@pytest.fixture(scope="module")
def captions(shared: Path) -> list[str]:
    """COCO captions."""
    file = shared / "coco_mini" / "annotations" / "captions_train2017.json"
    texts = [row["caption"] for row in json.loads(file.read_text())["annotations"]]
    return list(dict.fromkeys(texts))[:150]


def changes(pairs: list[tuple[str, str]]) -> list[str | None]:
    """The change of each pair of a caption and another text."""
    parses = parses_of(SHIPPED, itertools.chain.from_iterable(pairs))
    return [change(parses[caption], parses[other]) for caption, other in pairs]


def made(captions: list[str], generator: Generator) -> list[tuple[str, str, str]]:
    """Category, caption and negative of each caption that has one."""
    parses = parses_of(SHIPPED, captions)
    found = ((text, generator(parses[text], random.Random(7))) for text in captions)
    return [(one.category, text, one.text) for text, one in found if one is not None]


@pytest.mark.parametrize("category", BY_CATEGORY)
def test_replacements_are_of_the_category_that_made_them(
    captions: list[str], category: str
) -> None:
    pairs = [(text, other) for _, text, other in made(captions, replacer(categories=[category]))]
    assert len(pairs) > 40
    assert set(changes(pairs)) == {BY_CATEGORY[category]}


@pytest.mark.parametrize("generator", CAREFUL_SWAPS)
def test_swaps_are_of_the_part_of_speech_that_moved(
    captions: list[str], generator: Generator
) -> None:
    rows = [row for row in made(captions, generator) if row[0] in BY_PART_OF_SPEECH]
    found = changes([(text, other) for _, text, other in rows])
    assert len(rows) > 40
    for (category, _, _), kind in zip(rows, found, strict=True):
        # Nouns without their attributes, neighbours ("airport terminal") and things that are listed
        # ("a cup and a plate") are no exchange of two things alone.
        assert kind in {BY_PART_OF_SPEECH[category], None}
    assert found.count("swapped_objects") > 5


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("swap_att", "swapped_attributes"),
        ("swap_obj", "swapped_objects"),
        ("replace_att", "replaced_attribute"),
        ("replace_obj", "replaced_object"),
        ("replace_rel", "replaced_relation"),
        ("add_att", "added_attribute"),
    ],
)
def test_most_of_sugar_crepes_negatives_are_of_their_files_kind(
    shared: Path, file: str, kind: str
) -> None:
    """A language model wrote them freely: not all are a single change, or of the file's kind; most
    of its swapped objects leave their attributes behind, or are rewritten.
    """
    rows = json.loads((shared / "benchmarks" / "sugar_crepe" / f"{file}.json").read_text())
    pairs = [(row["caption"], row["negative_caption"]) for row in rows.values()]
    found = changes(pairs[:120])
    counts = Counter(filter(None, found))
    assert counts.most_common(1)[0][0] == kind
    assert counts.total() > len(found) / (5 if file == "swap_obj" else 3)
    assert counts[kind] > counts.total() * 2 / 3


def test_edits_of_scenes_are_of_their_kind() -> None:
    kinds = {
        "replace_kind": "replaced_object",
        "replace_colour": "replaced_attribute",
        "replace_pattern": "replaced_attribute",
        "replace_size": "replaced_attribute",
        "replace_relation": "replaced_relation",
        "swap_colours": "swapped_attributes",
        "swap_things": "swapped_objects",
    }
    assert kinds.keys() < EDITS.keys()
    rows = []
    for scene in itertools.islice(World().scenes(0, "train"), 80):
        for number, text in enumerate(sentences(scene, rng("told", scene.scene_id))):
            edited = edit(scene, text, "negative", rng(0, scene.scene_id, number))
            if edited is not None and edited.kind in kinds:
                rows.append((kinds[edited.kind], text, edited.text))
    found = changes([(text, other) for _, text, other in rows])
    wrong = Counter((row[0], kind) for row, kind in zip(rows, found, strict=True) if row[0] != kind)
    assert {kind for kind, _, _ in rows} == set(kinds.values())
    assert wrong.total() < 0.05 * len(rows), wrong


def test_equal_texts_have_no_change(captions: list[str]) -> None:
    assert set(changes([(text, f"{text.strip().upper()}!") for text in captions[:50]])) == {None}
