from collections.abc import Callable
from pathlib import Path

import numpy as np

from compo_pipeline.evaluation.audit import audit
from compo_pipeline.evaluation.benchmarks import Item, Subtask, sugar_crepe_pp
from compo_pipeline.evaluation.embed import Embedded, tokenised
from compo_pipeline.models.loading import load


def _embedded(
    build: Callable[..., Embedded], model: Path, subtask: Subtask, gone: dict[str, str]
) -> Embedded:
    texts = list(dict.fromkeys(subtask.texts()))
    tokens = tokenised(texts, load(model).tokenize)
    made = build({"x": [1.0]}, {text: [1.0] for text in texts}, gone)
    return Embedded(made.images, made.unreadable, made.texts, tokens)


def test_everything_a_reader_should_know_is_counted(
    embedded: Callable[..., Embedded], tiny_model: Callable[..., Path]
) -> None:
    long = " ".join(["dog"] * 20)
    items = (
        Item("fine", "a.jpg", ("a dog", "one dog"), ("a cat",)),
        Item("equal", "b.jpg", ("a dog", "a bird"), ("a bird",)),
        Item("case", "c.jpg", ("A Dog", "a cow"), ("a dog",)),
        # They differ after the 14th word only, which the model never sees.
        Item("cut", "d.jpg", (f"{long} barks", "a cow"), (f"{long} sleeps",)),
    )
    subtask = Subtask("sugar_crepe_pp", "swap_obj", ("image_to_text",), Path("i"), items)
    gone = {"i/a.jpg": "missing: no file at 'a.jpg'", "i/b.jpg": "missing: no file at 'b.jpg'"}
    found = audit(subtask, _embedded(embedded, tiny_model(0), subtask, gone))
    assert (found.items, found.skipped, found.reasons) == (4, 2, {"missing": 2})
    assert (found.texts, found.truncated) == (8, 2)
    assert [(d.item, d.kind) for d in found.examples] == [
        ("equal", "equal text"),
        ("case", "equal tokens"),
        ("cut", "equal tokens"),
    ]
    assert found.degenerate == 3


def test_captions_that_two_images_share(
    embedded: Callable[..., Embedded], tiny_model: Callable[..., Path]
) -> None:
    items = (
        Item("a", "a.jpg", ("a dog", "a dog")),  # twice for one image: no harm
        Item("b", "b.jpg", ("a cat",)),
        Item("c", "c.jpg", ("A cat",)),
    )
    subtask = Subtask("retrieval", "raw", ("retrieval",), Path("i"), items)
    found = audit(subtask, _embedded(embedded, tiny_model(0), subtask, {}))
    assert [(d.item, d.kind) for d in found.examples] == [
        ("b", "equal tokens"),
        ("c", "equal tokens"),
    ]


def test_the_defects_of_the_official_files_are_found(
    shared: Path, embedded: Callable[..., Embedded]
) -> None:
    import open_clip

    subtasks = sugar_crepe_pp.load(shared / "benchmarks", shared / "coco_mini" / "val2017")
    subtask = next(task for task in subtasks if task.name == "swap_obj")
    texts = list(dict.fromkeys(subtask.texts()))
    made = embedded({"x": [1.0]}, {text: [1.0] for text in texts})
    tokens = tokenised(texts, open_clip.get_tokenizer("ViT-B-32"))
    found = audit(subtask, Embedded(made.images, {}, made.texts, tokens))
    assert sum(example.kind == "equal text" for example in found.examples) == 2
    assert np.count_nonzero(tokens.truncated) == found.truncated == 0
