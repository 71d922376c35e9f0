import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file
from tests.evaluating import evaluate
from tests.evaluation.conftest import write_noise

from compo_pipeline.benchmarks import sugar_crepe
from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.loading import from_files
from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.data.images.decoding import Limits
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.embed import Embedded, tokenize_texts
from compo_pipeline.evaluation.evaluate import (
    Comparison,
    ScoresFingerprint,
    audit,
    loaders,
    score_models,
)
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import published_results
from compo_pipeline.models.loading import load
from compo_pipeline.models.settings import ModelSettings

NOTHING = TrainingRows()


def test_official_files_with_some_of_their_images(
    shared: Path, tiny_model: Callable[..., Path]
) -> None:
    images = shared / "coco_mini" / "val2017"
    sets = {"sugar_crepe_pp": BenchmarkSet()}
    settings = BenchmarksSettings(str(shared / "benchmarks"), str(images), sets)
    subtasks = from_files(settings)
    here = {path.name for path in images.iterdir()}
    folders = [tiny_model(0), tiny_model(1)]
    models = {
        role: lambda folder=folder: load(folder)
        for role, folder in zip(("base", "fine_tuned"), folders, strict=True)
    }
    scores, comparison = evaluate(
        subtasks, models, "clic", "CLIC", "coco", NOTHING, EvaluationSettings()
    )
    rows = {row.key: row for row in comparison.rows}
    for subtask in subtasks:
        shown = sum(item.image in here for item in subtask.items)
        row = rows.get((subtask.benchmark, "itt", subtask.name))
        if row is None:
            assert shown == 0
            continue
        assert (row.items, row.skipped) == (shown, len(subtask.items) - shown)
    # Text alone needs no image: every item counts, and is compared with the published figures.
    assert rows["sugar_crepe_pp", "tot", "average"].items == 4757
    papers = published_results(comparison.rows, coco=True)
    assert {row.metric for paper in papers for row, _ in paper.rows} == {"tot"}
    skipped = sum(score.correct is None for score in scores if score.model == "clic")
    items = sum(len(subtask.items) for subtask in subtasks)
    shown = sum(item.image in here for subtask in subtasks for item in subtask.items)
    assert skipped == items - shown > 4_600


def test_a_folder_without_a_model_is_no_control(
    tiny_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_model(seed=1)
    found = loaders(ModelSettings(f"local-dir:{folder}"), tmp_path, folder, "cpu")
    assert found.keys() == {"base", "fine_tuned"} and "no control" in caplog.text


def test_a_random_model_stands_at_chance(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    write_noise(tmp_path, 4)
    words = np.random.default_rng(0).integers(0, 10_000, (300, 3))
    items = tuple(
        Item(str(k), f"{k % 4}.png", (f"word {a}", f"word {b}"), (f"word {c}",))
        for k, (a, b, c) in enumerate(words)
    )
    subtask = Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), tmp_path, items)
    folder = tiny_model(3)
    models = {"base": lambda: load(folder), "fine_tuned": lambda: load(folder)}
    settings = EvaluationSettings(workers=1)
    scores, comparison = evaluate([subtask], models, "clic", "CLIC", "toy", NOTHING, settings)
    (row,) = comparison.rows
    assert row.chance == pytest.approx(100 / 3)
    # The method is written as its paper writes it; its scores have its registered name.
    assert comparison.labels == {"base": "base", "fine_tuned": "CLIC"}
    names = {role: model.name for role, model in comparison.models.items()}
    assert names == {"base": "base", "fine_tuned": "clic"} and comparison.reference == "base"
    assert {score.model for score in scores} == set(names.values())
    stored = load_file(folder / "open_clip_model.safetensors")
    for model in comparison.models.values():
        assert model.cost is not None
        assert model.cost.parameters[1] == sum(each.numel() for each in stored.values()) / 1e6
    # Four images only, so items lean together: a wide margin.
    assert row.values["base"].value == pytest.approx(100 / 3, abs=8)


def _embedded(
    build: Callable[..., Embedded], model: Path, subtask: Subtask, gone: dict[str, str]
) -> Embedded:
    texts = list(dict.fromkeys(subtask.texts()))
    tokens = tokenize_texts(texts, load(model).tokenize)
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
    (found,) = audit([subtask], _embedded(embedded, tiny_model(0), subtask, gone))
    assert (found.items, found.skipped, found.reasons) == (4, 2, {"missing": 2})
    assert (found.texts, found.truncated) == (8, 2)
    assert found.degenerate == 3


def test_parts_of_a_set_are_audited_as_one(
    embedded: Callable[..., Embedded], tiny_model: Callable[..., Path]
) -> None:
    whole = Subtask(
        "aro",
        "vg_relation/on",
        ("image_to_text",),
        Path("i"),
        (Item("0", "a.jpg", ("a dog",), ("a cat",)), Item("1", "b.jpg", ("a",), ("a",))),
        dropped={"symmetric relations": 2},
        deviations=("a tie is wrong",),
    )
    first = replace(whole, items=whole.items[:1])
    second = replace(whole, name="vg_relation/in")
    alone = replace(whole, name="coco_order", dropped={}, deviations=())
    gone = {"i/a.jpg": "missing: no file at 'a.jpg'"}
    of_all = _embedded(embedded, tiny_model(0), whole, gone)
    relation, order = audit([first, second, alone], of_all)
    assert (relation.subtask, relation.items, relation.skipped) == ("vg_relation", 3, 2)
    assert (relation.texts, relation.degenerate, relation.reasons) == (3, 1, {"missing": 2})
    assert relation.dropped == {"symmetric relations": 4}
    assert (order.subtask, order.items, order.dropped) == ("coco_order", 2, {})
    assert relation.deviations == ("a tie is wrong",)
    (line,) = Comparison({}, (), audits=(relation,)).left_out
    assert line.startswith("ARO: ") and line.endswith("values beside it: a tie is wrong")


def test_captions_that_two_images_share(
    embedded: Callable[..., Embedded], tiny_model: Callable[..., Path]
) -> None:
    items = (
        Item("a", "a.jpg", ("a dog", "a dog")),  # twice for one image: no harm
        Item("b", "b.jpg", ("a cat",)),
        Item("c", "c.jpg", ("A cat",)),
    )
    subtask = Subtask("retrieval", "raw", ("retrieval",), Path("i"), items)
    (found,) = audit([subtask], _embedded(embedded, tiny_model(0), subtask, {}))
    assert found.degenerate == 2


def test_the_defects_of_the_official_files_are_found(
    shared: Path, embedded: Callable[..., Embedded]
) -> None:
    import open_clip

    subtasks = sugar_crepe.load_pp(
        shared / "benchmarks" / "sugar_crepe_pp", shared / "coco_mini" / "val2017"
    )
    subtask = next(task for task in subtasks if task.name == "swap_obj")
    texts = list(dict.fromkeys(subtask.texts()))
    made = embedded({"x": [1.0]}, {text: [1.0] for text in texts})
    tokens = tokenize_texts(texts, open_clip.get_tokenizer("ViT-B-32"))
    (found,) = audit([subtask], Embedded(made.images, {}, made.texts, tokens))
    assert found.degenerate == 2
    assert np.count_nonzero(tokens.truncated) == found.truncated == 0


class _Model(SimpleNamespace):
    """What `score_models` asks of a loaded model."""

    name, fingerprint, cost = "m", "m", None


@pytest.fixture
def many(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> tuple[Subtask, Embedded]:
    """A subtask of many items, which every model embeds alike."""
    items = tuple(
        Item(str(k), f"{k % 9}.jpg", (f"right {k}", f"true {k}"), (f"wrong {k}",))
        for k in range(1_000)
    )
    protocols = ("image_to_text", "text_only")
    subtask = Subtask("sugar_crepe_pp", "swap_obj", protocols, Path("i"), items)
    generator = np.random.default_rng(0)
    texts = {text: generator.normal(size=4).tolist() for text in subtask.texts()}
    images = {f"i/{k}.jpg": generator.normal(size=4).tolist() for k in range(9)}
    made = embedded(images, texts)

    def embedder(*arguments: Any) -> Callable[..., Embedded]:
        return lambda loaded, name: made

    monkeypatch.setattr("compo_pipeline.evaluation.evaluate.Embedder", embedder)
    return subtask, made


def test_one_model_is_in_memory_at_a_time(many: tuple[Subtask, Embedded]) -> None:
    subtask, made = many
    loaded: list[weakref.ref[Any]] = []

    def load_model() -> Any:
        assert all(one() is None for one in loaded)
        model = _Model()
        loaded.append(weakref.ref(model))
        return model

    scored = score_models([subtask], dict.fromkeys("abc", load_model), EvaluationSettings())
    assert len(loaded) == 3 and len(scored.audits) == 1
    direct = [score_model([subtask], made, name) for name in scored.models]
    assert list(scored.rows) == [row for own in direct for row in own.rows]
    assert all(scored.chance == own.chance for own in direct)


EVALUATION = EvaluationSettings(device="cpu")


@pytest.fixture
def subtask(tmp_path: Path) -> Subtask:
    """Four random images, each with two right texts and a wrong one."""
    write_noise(tmp_path, 4)
    items = tuple(
        Item(f"{k}", f"{k}.png", (f"cup {k}", f"a cup is {k}"), (f"key {k}",)) for k in range(4)
    )
    return Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), tmp_path, items)


def test_another_benchmark_changes_no_fingerprint_of_the_first(subtask: Subtask) -> None:
    other = replace(subtask, benchmark="sugar_crepe")
    changed = replace(other, items=other.items[1:])
    one, two = ScoresFingerprint.of([subtask, other], EVALUATION)
    again, anew = ScoresFingerprint.of([subtask, changed], EVALUATION)
    assert one == again and two.differences(anew) == ["items", "images"]


def test_the_fingerprint_changes_with_everything_that_scores_depend_on(subtask: Subtask) -> None:
    def fingerprint(task: Subtask, settings: EvaluationSettings) -> ScoresFingerprint:
        (found,) = ScoresFingerprint.of([task], settings)
        return found

    ours = fingerprint(subtask, EVALUATION)
    assert fingerprint(subtask, replace(EVALUATION, image_batch=7, workers=1)) == ours
    exact = fingerprint(subtask, replace(EVALUATION, precision="bf16"))
    assert ours.differences(exact) == ["settings"]
    reworded = replace(subtask.items[0], negatives=("keys",))
    asked = replace(subtask, items=(reworded, *subtask.items[1:]))
    assert ours.differences(fingerprint(asked, EVALUATION)) == ["items"]
    for readers in ({"deviations": ("ties",)}, {"dropped": {"symmetric": 1}}, {"title": "own"}):
        reported: dict[str, Any] = readers
        assert fingerprint(replace(subtask, **reported), EVALUATION) == ours
    turned = replace(subtask, limits=Limits(exif=False))
    assert ours.differences(fingerprint(turned, EVALUATION)) == ["items"]
    image = subtask.images / "0.png"
    before = image.read_bytes()
    try:
        Image.new("RGB", (32, 32), "grey").save(image)
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
        image.unlink()
        assert ours.differences(fingerprint(subtask, EVALUATION)) == ["images"]
    finally:
        image.write_bytes(before)
    assert fingerprint(subtask, EVALUATION) == ours
