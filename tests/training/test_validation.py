"""Validation while training: what is measured, what is kept, when it stops, how it goes on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from tests.training.conftest import equal, steps_done, weights

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.benchmarks.settings import (
    BENCHMARKS,
    BenchmarkSet,
    BenchmarksSettings,
    RetrievalSettings,
)
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.metrics import metric_values
from compo_pipeline.evaluation.scoring import score_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.losses import contrastive
from compo_pipeline.methods.clic import Clic, ClicObjective, ClicViews
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import ImageInput, Method, ViewContext
from compo_pipeline.methods.registry import METHODS, build
from compo_pipeline.methods.views import write
from compo_pipeline.models.loading import load
from compo_pipeline.models.weights import read_record
from compo_pipeline.training import checkpoint
from compo_pipeline.training.checkpoint import FingerprintError, Progress
from compo_pipeline.training.inputs import HeldOut, TrainingInputs, fingerprint_of
from compo_pipeline.training.loop import Job, train
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import (
    EarlyStoppingSettings,
    LowRankSettings,
    ValidationSettings,
)
from compo_pipeline.training.validation import LOSS, Validator, best_point, stops_early
from compo_pipeline.tuning.selection import ItemMetrics, held_out
from compo_scenes import scenes_base

CLIC = Clic(ClicViews(), ClicObjective())
FIGURE = "sugar_crepe/accuracy/swap_att"
SELECTING = BenchmarksSettings()
BY_FIGURE = ValidationSettings(every=1, figure="retrieval/i2t_r1/raw")

Weights = dict[str, torch.Tensor]
Trained = tuple[Progress, Weights, dict[str, Any]]


@pytest.fixture(scope="session")
def data(world: Any) -> HeldOut:
    """Ten rows, and items about their images."""
    rows = [replace(row, split="val") for row in world.captions[:10]]
    items = tuple(
        Item(row.sample_id, row.image, (row.sentences[0],), (other.sentences[0],))
        for row, other in zip(rows, reversed(rows), strict=True)
    )
    task = Subtask("sugar_crepe", "swap_att", ("image_to_text",), world.root, items)
    return HeldOut(rows, ItemMetrics([task]), "of these items")


def subtasks(data: HeldOut) -> Sequence[Subtask]:
    """Those that the figures are of."""
    assert isinstance(data.measure, ItemMetrics)
    return data.measure.subtasks


@pytest.fixture
def plan(plan: TrainingInputs, recipe: Any, data: HeldOut) -> TrainingInputs:
    """Twelve steps of four rows, validated after every other, the best kept. Their rate falls
    below zero: the later ones climb the loss that the first ones descend.
    """
    settings = recipe(epochs=4, save_every=3, validation=ValidationSettings(2), keep="best")
    optimizer = replace(settings.optimizer, lr=0.01)
    # No configuration may have it: with it, training undoes itself.
    object.__setattr__(optimizer, "lr_end", -0.18)
    return replace(plan, settings=replace(settings, optimizer=optimizer), held_out=data)


def changed(plan: TrainingInputs, **changes: Any) -> TrainingInputs:
    """With other settings, and states of its own."""
    settings = replace(plan.settings, **changes)
    return replace(plan, settings=settings, resume=plan.resume / f"{len(repr(settings))}")


def trained(plan: TrainingInputs, method: Method = CLIC, steps: int | None = None) -> Trained:
    """The curve and counts, the exported weights, and what the checkpoint records."""
    folder = plan.resume / "out"
    progress = train(plan, Job(method, method.name, folder, steps), lambda _: None)
    return progress, weights(folder), read_record(folder)["training"]


def validated(progress: Progress, name: str = LOSS) -> list[tuple[int, float]]:
    return [(int(point["step"]), point[name]) for point in progress.curve if name in point]


def test_the_loss_is_that_of_plain_fine_tuning_on_full_batches(
    plan: TrainingInputs, data: HeldOut, tiny_clip: Path
) -> None:
    """Ten rows are two batches of four; the point at step 0 is the base's."""
    progress, _, _ = trained(changed(plan, max_steps=3))
    assert [step for step, _ in validated(progress)] == [0, 2, 3]
    base, losses = load(tiny_clip), []
    reader = ModelPreprocessor(base, plan.root)
    with torch.no_grad():
        for rows in (data.rows[:4], data.rows[4:8]):
            pixels = reader.images([ImageInput((row.image,)) for row in rows])
            tokens = reader.tokens([row.sentences[0].lower() for row in rows])
            images = base.model.encode_image(pixels, normalize=True)
            texts = base.model.encode_text(tokens, normalize=True)
            losses.append(contrastive.clip(images, texts, base.model.logit_scale.exp()).item())
    assert progress.curve[0][LOSS] == pytest.approx(sum(losses) / 2, rel=1e-5)


# Methods whose losses read a batch of each kind; the others take as long and repeat them.
KINDS = ("ce_clip", "clic", "c2lip", "fsc_clip", "read_clip", "sparcl")


@pytest.mark.parametrize(
    "name",
    [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_every_method_is_validated_resumed_and_exported(
    plan: TrainingInputs, world: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption between validation and save, curve, best weights and record are those
    of an uninterrupted run, and open_clip alone reads the weights.
    """
    decoder = {"read": {"decoder": str(scenes_base() / "decoder")}}
    method = build(name, {}, {"trains": ["text"], **(decoder if "read" in name else {})})
    drawing = ViewContext(world.parses, "hand", 0, 0, world.edits())
    write(method, world.captions, drawing, 2, tmp_path / "views")
    plan = replace(plan, views=tmp_path / "views")
    settings = replace(plan.settings, max_steps=6, cache_features=True)
    plan = replace(plan, settings=settings)
    progress, tuned, record = trained(replace(plan, resume=tmp_path / "whole"), method)
    assert [step for step, _ in validated(progress)] == [0, 2, 4, 6]

    save = checkpoint.save

    def killed(*args: Any, step: int, **options: Any) -> None:
        if step == 6:
            raise KeyboardInterrupt
        save(*args, step=step, **options)

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(plan, method)
    monkeypatch.undo()
    assert steps_done(plan, method, name) == 3
    again, same_weights, same_record = trained(plan, method)
    assert again == progress and same_record == record
    assert equal(tuned, same_weights)
    read = open_clip.create_model(f"local-dir:{plan.resume / 'out'}").state_dict()
    assert all(torch.equal(read[tensor], value) for tensor, value in tuned.items())


@pytest.mark.parametrize("dies_at", ["validation", "saving", "saved"])
def test_best_weights_and_patience_survive_a_kill_anywhere(
    plan: TrainingInputs, dies_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the third of each: the best is known by then, and patience has begun to count."""
    stopping = EarlyStoppingSettings(patience=2, min_delta=0.01)
    settings = replace(plan.settings, early_stopping=stopping, save_every=1)
    plan = replace(plan, settings=settings)
    progress, tuned, record = trained(replace(plan, resume=tmp_path / "whole"))
    assert record["selected"]["step"] < progress.step < record["planned_steps"]

    owner, name = (Validator, "__call__") if dies_at == "validation" else (checkpoint, "save")
    call, calls = getattr(owner, name), []

    def dying(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == 3 and dies_at != "saved":
            raise KeyboardInterrupt
        result = call(*given, **options)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, dying)
    with pytest.raises(KeyboardInterrupt):
        trained(plan)
    monkeypatch.undo()
    again, same_weights, same_record = trained(plan)
    assert again == progress and same_record == record
    assert equal(tuned, same_weights)


def test_the_best_weights_are_those_after_so_many_steps(
    plan: TrainingInputs, tmp_path: Path
) -> None:
    """Taken by the schedule of the whole run."""
    progress, tuned, record = trained(plan)
    losses = dict(validated(progress))
    best = min((step for step in losses if step), key=lambda step: losses[step])
    assert record["selected"] == {
        "rule": "best",
        "step": best,
        "by": LOSS,
        "value": losses[best],
        "base": losses[0],
    }
    assert 0 < best < progress.step == record["steps"] == record["planned_steps"]
    last = changed(plan, keep="last", validation=ValidationSettings())
    cut, expected, of_cut = trained(last, steps=best)
    assert equal(tuned, expected) and of_cut["selected"] == {"rule": "last", "step": best}
    assert [point["lr"] for point in cut.curve] == [point["lr"] for point in progress.curve[1:]][
        :best
    ]


@pytest.mark.parametrize("lora", [None, 2])
def test_the_figure_is_the_one_that_evaluation_finds(
    plan: TrainingInputs, data: HeldOut, lora: int | None
) -> None:
    """Of the exported weights; both towers train, on random crops."""
    method = Clic(ClicViews(), ClicObjective(trains=("image", "text")))
    wanted = ValidationSettings(2, figure=FIGURE)
    settings = replace(plan.settings, validation=wanted, lora=LowRankSettings(lora), max_steps=6)
    settings = replace(settings, crop_scale=(0.5, 1.0))
    _, _, record = trained(replace(plan, settings=settings), method)
    kept = record["selected"]
    assert kept["by"] == f"val/{FIGURE}"
    exported = load(plan.resume / "out")
    found = score_model(
        subtasks(data), Embedder(subtasks(data), EvaluationSettings())(exported, ""), ""
    )
    assert kept["value"] == pytest.approx(metric_values(found.rows)[FIGURE])


def test_measuring_alone_changes_no_weight_and_no_fingerprint(plan: TrainingInputs) -> None:
    unseen = changed(plan, keep="last", validation=ValidationSettings())
    seen = replace(changed(plan, keep="last"), resume=plan.resume / "seen")
    assert equal(trained(unseen)[1], trained(seen)[1])
    assert fingerprint_of(unseen, CLIC) == fingerprint_of(seen, CLIC)
    # So a run that was not validated may go on with validation.
    assert steps_done(replace(seen, resume=unseen.resume), CLIC, "clic") == 12


def test_what_decides_the_weights_is_in_the_fingerprint(
    plan: TrainingInputs, data: HeldOut
) -> None:
    trained(plan)

    def refused(named: str, held: HeldOut = data, **changes: Any) -> None:
        other = replace(plan, settings=replace(plan.settings, **changes), held_out=held)
        with pytest.raises(FingerprintError, match=named):
            steps_done(other, CLIC, "clic")

    refused("training.keep: best -> last", keep="last")
    refused("training.validation.every: 2 -> 3", validation=ValidationSettings(3))
    refused("early_stopping.patience: None -> 9", early_stopping=EarlyStoppingSettings(9))
    refused("validation: ", replace(data, rows=data.rows[:8]))
    refused("validation: ", replace(data, measured="of other items"))
    assert steps_done(plan, CLIC, "clic") == 12


def test_the_control_takes_as_many_steps_as_a_method_that_stopped(plan: TrainingInputs) -> None:
    stopping = EarlyStoppingSettings(patience=1, min_delta=0.5)
    plan = replace(plan, settings=replace(plan.settings, early_stopping=stopping))
    method, _, _ = trained(plan)
    assert method.step < 12
    control, _, record = trained(plan, control_of(CLIC), steps=method.step)
    assert control.step == record["steps"] == method.step
    rates = [[p["lr"] for p in one.curve if p["step"]] for one in (method, control)]
    assert rates[0] == rates[1]
    # It is held to no patience of its own, and keeps its own best.
    assert record["selected"]["rule"] == "best"
    with pytest.raises(FingerprintError, match="steps: "):
        trained(plan, control_of(CLIC), steps=method.step + 1)


def curve(*values: float, name: str = LOSS) -> list[dict[str, float]]:
    """Points at steps 10, 20, ... behind the base's, among points that nobody validated."""
    points = [{"step": 0.0, name: -1e9 if name == LOSS else 1e9}]
    for number, value in enumerate(values, 1):
        points += [{"step": number * 10 - 5, "loss": 0.0}, {"step": number * 10, name: value}]
    return points


@pytest.mark.parametrize(
    ("values", "step"),
    [((3, 2, 4), 20), ((2, 2, 2), 10), ((3, 2, 2, 5), 20), ((5,), 10), ((5, 4, 3), 30)],
)
def test_the_best_is_the_lowest_loss_or_the_highest_figure_and_the_earlier(
    recipe: Any, values: tuple[float, ...], step: int
) -> None:
    by_loss = recipe()
    assert best_point(curve(*values), by_loss)["step"] == step
    by_figure = recipe(validation=ValidationSettings(1, figure="a/b/c"))
    rising = curve(*(-one for one in values), name="val/a/b/c")
    assert best_point(rising, by_figure)["step"] == step
    assert not stops_early(curve(*values, *([9] * 99)), by_loss)


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "stops"),
    [
        ((3, 3), 1, 0, True),
        ((3, 2), 1, 0, False),
        ((3, 4, 5), 2, 0, True),
        ((3, 4, 2, 4), 2, 0, False),
        ((3, 2.9, 2.8), 2, 0.3, True),  # neither is better by more than that
        ((3, 2.9, 2.6), 2, 0.3, False),  # together they are
        ((3, 2.75), 1, 0.25, True),
    ],
)
def test_patience_counts_validations_without_a_better_value(
    recipe: Any, values: tuple[float, ...], patience: int, min_delta: float, stops: bool
) -> None:
    stopping = EarlyStoppingSettings(patience, min_delta)
    settings = recipe(validation=ValidationSettings(1), early_stopping=stopping)
    assert stops_early(curve(*values), settings) == stops


REPORTED = BenchmarksSettings(retrieval=RetrievalSettings("test"))


@pytest.fixture
def splits(world: Any) -> list[Any]:
    """Four rows that train, four of validation, two of them of one image, and four reported."""
    names = ["train"] * 4 + ["val"] * 4 + ["test"] * 4
    rows = [replace(row, split=name) for row, name in zip(world.captions, names, strict=True)]
    rows[5] = replace(rows[5], image_id=rows[4].image_id, image=rows[4].image)
    return rows


def test_rows_are_distinct_images_of_the_split(world: Any, splits: list[Any]) -> None:
    def found(settings: ValidationSettings) -> HeldOut:
        return held_out(settings, splits, world.root, "train", REPORTED, SELECTING)

    assert not found(ValidationSettings()).rows
    every, few = found(ValidationSettings(1, rows=None)), found(ValidationSettings(1, rows=2))
    assert every.measure is None
    assert {row.sample_id for row in every.rows} == {"s04", "s06", "s07"}
    assert len(few.rows) == 2 and few == found(ValidationSettings(1, rows=2))


def test_retrieval_ranks_the_rows(world: Any, splits: list[Any]) -> None:
    found = held_out(BY_FIGURE, splits, world.root, "train", REPORTED, SELECTING)
    (task,) = subtasks(found)
    texts = {item.image: len(item.positives) for item in task.items}
    assert texts == {"s04.png": 2, "s06.png": 1, "s07.png": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ValidationSettings(1, "test"), r"split: .*'test', which is reported on \(benchmarks\.ret"),
        (ValidationSettings(1, "train"), "split: .*'train', which trains"),
        (
            ValidationSettings(1, "dev"),
            "split: .*got 0 of the split 'dev' .splits: test, train, val",
        ),
        (replace(BY_FIGURE, figure="retrieval/i2t_r1/row"), "figure: .*there are: raw, clic"),
    ],
)
def test_a_split_that_cannot_validate_is_refused(
    world: Any, splits: list[Any], settings: ValidationSettings, message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"training\.validation\.{message}"):
        held_out(settings, splits, world.root, "train", REPORTED, SELECTING)


def test_items_that_are_reported_are_refused(
    world: Any, splits: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the folder is called: images and texts count."""
    items = {
        n: {"filename": f"s0{n}.png", "caption": f"a {n}", "negative_caption": "b"} for n in "67"
    }
    for root in ("own", "reported"):
        (tmp_path / root / "sugar_crepe").mkdir(parents=True)
        (tmp_path / root / "sugar_crepe" / "swap_att.json").write_text(json.dumps(items))
    settings = ValidationSettings(1, figure=FIGURE)
    own = BenchmarksSettings(str(tmp_path / "own"), str(world.root))
    with pytest.raises(SettingsError, match=r"tuning\.benchmarks: the files of sugar_crepe .*"):
        held_out(settings, splits, world.root, "train", REPORTED, own)
    titles = {"source": "made here", "titles": {"sugar_crepe": "SugarCrepe-style"}}
    (tmp_path / "own" / "benchmarks.json").write_text(json.dumps(titles))
    sets = {"sugar_crepe": BenchmarkSet()}
    reported = BenchmarksSettings(str(tmp_path / "reported"), str(world.root), sets)
    with pytest.raises(SettingsError, match=r"tuning\.benchmarks: 2 of 2 items"):
        held_out(settings, splits, world.root, "train", reported, own)
    asked = settings, splits, world.root, "train", REPORTED, own
    found = held_out(*asked)
    assert len(subtasks(found)[0].items) == 2
    # What they measure depends on how they are averaged and scored.
    measured = {found.measured, held_out(*asked).measured}
    with monkeypatch.context() as patch:
        patch.setitem(BENCHMARKS, "sugar_crepe", replace(BENCHMARKS["sugar_crepe"], averages={}))
        measured.add(held_out(*asked).measured)
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "SCORING", scoring.SCORING + 1)
        measured.add(held_out(*asked).measured)
    assert len(measured) == 3
    with pytest.raises(SettingsError, match=r"training\.validation, for the figure .*none/sugar"):
        held_out(settings, splits, world.root, "train", REPORTED, replace(own, root="none"))


def test_a_figure_that_the_items_do_not_give_stops_before_the_first_step(
    plan: TrainingInputs,
) -> None:
    settings = replace(plan.settings, validation=ValidationSettings(2, figure="retrieval/x/y"))
    with pytest.raises(SettingsError, match=r"validation\.figure: .*there are: sugar_crepe/acc"):
        trained(replace(plan, settings=settings))
    assert not plan.resume.exists()
