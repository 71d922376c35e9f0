"""Tuned and configured values with fresh seeds and views, on the reported items."""

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from compo_pipeline.evaluation import scoring
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.metrics import metric_values
from compo_pipeline.evaluation.scoring import score
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.methods.views import EpochViews, ViewSettings, write
from compo_pipeline.models.loading import load
from compo_pipeline.training import fingerprint
from compo_pipeline.training.run import Trainer
from compo_pipeline.tuning import confirmation as confirmations
from compo_pipeline.tuning.confirmation import Confirmation, as_comparison

LR = "training.optimizer.lr"
TUNED = {LR: 0.5}
SEEDS = (5, 6)


@pytest.fixture
def confirmation(world: Any, tmp_path: Path) -> Confirmation:
    return Confirmation(
        world.inputs, world.view_context, ViewSettings(), world.items, tmp_path / "confirmed"
    )


def figures(world: Any, folder: Path, seed: int, tuned: dict[str, float]) -> dict[str, float]:
    """Of a recipe that is trained by hand, with views of the seed."""
    inputs = world.inputs
    method, recipe = inputs.build(tuned)
    views = folder / "views"
    write(method, inputs.training.captions, world.view_context._replace(seed=seed), 1, views)
    plan = replace(
        inputs.training, settings=recipe, seed=seed, views=views, resume=folder / "state"
    )
    Trainer(plan).train(method, "hand", folder / "out", lambda _: None)
    embedded = Embedder(world.items, inputs.evaluation)(load(folder / "out"), "hand")
    found = (one for task in world.items for one in score("hand", task, embedded))
    return metric_values(row for one in found for row in one.rows)


def test_three_models_side_by_side_over_all_seeds_and_only_once(
    world: Any, confirmation: Confirmation, tmp_path: Path, trained: list[str]
) -> None:
    rows = confirmation.run(TUNED, SEEDS)
    assert trained == ["configured", "tuned"] * 2
    # Views, states and checkpoints have served; the scores stay.
    files = [path for path in confirmation.folder.rglob("*") if path.is_file()]
    folders = {path.name for path in confirmation.folder.rglob("*") if path.is_dir()}
    assert len(files) == 4 and {path.suffix for path in files} == {".parquet"}
    assert {"seed=5", "seed=6"} < folders and "work" not in folders

    again = confirmation.run(TUNED, SEEDS)
    assert repr(again) == repr(rows) and len(trained) == 4

    by_hand = [
        [figures(world, tmp_path / f"{seed} {place}", seed, tuned) for seed in SEEDS]
        for place, tuned in enumerate(({}, TUNED))
    ]
    assert [row.name for row in rows] == ["pairs", "known"]
    for row in rows:
        of = f"play/accuracy/{row.name}"
        configured, tuned = (mean(one[of] for one in seeds) for seeds in by_hand)
        found = row.against("configured")
        assert row.values["configured"].value == pytest.approx(configured)
        assert row.estimate.value == pytest.approx(tuned)
        assert found is not None and found.value == pytest.approx(tuned - configured)
        assert row.difference.value == pytest.approx(tuned - row.values["base"].value)
        assert row.items == 12 and row.chance == pytest.approx(50)
    assert rows[1].values["base"].value == 100
    assert rows[1].estimate.value != pytest.approx(rows[1].values["configured"].value)


@pytest.mark.slow
def test_two_processes_confirm_what_one_does(
    confirmation: Confirmation, tmp_path: Path, trained: list[str]
) -> None:
    rows = confirmation.run(TUNED, SEEDS, processes=2)
    assert trained == []  # in this process
    alone = replace(confirmation, folder=tmp_path / "alone")
    assert repr(alone.run(TUNED, SEEDS)) == repr(rows)
    assert not list(confirmation.folder.rglob("work"))


def test_views_of_several_sources_have_their_shares(
    world: Any, confirmation: Confirmation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of an epoch's rows are of the first three rows; each seed has an order of its own."""
    captions = [
        replace(row, source="few" if place < 3 else "many")
        for place, row in enumerate(world.inputs.training.captions)
    ]
    inputs = replace(world.inputs, training=replace(world.inputs.training, captions=captions))
    mixture = Mixture({"few": 1.0, "many": 2.0}, 9, 0)
    mixed = replace(confirmation, inputs=inputs, mixture=mixture)
    few = {row.sample_id for row in captions[:3]}
    drawn = []

    def look(self: Trainer, method: Any, name: str, folder: Path, report_: Any) -> None:
        views = EpochViews(self.inputs.views).epoch(0)
        assert sum(view.sample_id in few for view in views) == 3 and len(views) == 9
        drawn.append([view.sample_id for view in views])
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "train", look)
    for seed in SEEDS:
        with pytest.raises(KeyboardInterrupt):
            mixed.run(TUNED, [seed])
    assert drawn[0] != drawn[1]


def test_every_seed_has_views_of_its_own_for_both_recipes(
    world: Any,
    confirmation: Confirmation,
    tiny_clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, used = [], []

    def noting(*given: Any, **options: Any) -> None:
        write(*given, **options)
        *_, folder = given
        drawn.append(fingerprint.folder_fingerprint(folder))

    def untrained(self: Trainer, method: Any, name: str, folder: Path, report_: Any) -> None:
        used.append((self.inputs.seed, name, fingerprint.folder_fingerprint(self.inputs.views)))
        shutil.copytree(tiny_clip, folder)

    monkeypatch.setattr(confirmations, "write", noting)
    monkeypatch.setattr(Trainer, "train", untrained)
    confirmation.run(TUNED, SEEDS)
    study = tmp_path / "study"
    method, _ = world.inputs.build()
    write(method, world.inputs.training.captions, world.view_context, 1, study)
    assert len(drawn) == 2 and len({*drawn, fingerprint.folder_fingerprint(study)}) == 3
    assert used == [
        (seed, name, views)
        for seed, views in zip(SEEDS, drawn, strict=True)
        for name in ("configured", "tuned")
    ]


@pytest.mark.slow
def test_a_killed_confirmation_goes_on_where_it_was(
    world: Any,
    confirmation: Confirmation,
    tmp_path: Path,
    steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, train = [], Trainer.train

    def killed(self: Trainer, method: Any, name: str, folder: Path, report_: Any) -> Any:
        names.append(name)

        def point(at: Any) -> None:
            if names == ["configured", "tuned"] and at["step"] == 3:
                raise KeyboardInterrupt

        return train(self, method, name, folder, point)

    monkeypatch.setattr(Trainer, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        confirmation.run(TUNED, SEEDS[:1])
    rows = confirmation.run(TUNED, SEEDS[:1])
    assert names == ["configured", "tuned", "tuned"]
    # Killed after step 3, it continues from the state of step 2.
    assert len(steps) == 6 + 3 + 4
    undisturbed = replace(confirmation, folder=tmp_path / "undisturbed")
    assert repr(undisturbed.run(TUNED, SEEDS[:1])) == repr(rows)


def test_other_values_begin_anew_where_those_before_were_killed(
    confirmation: Confirmation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study has gone on meanwhile, and found better ones."""
    scored = confirmations.score_model

    def killed(subtasks: Any, embedded: Any, name: str) -> Any:
        if name == "tuned":
            raise KeyboardInterrupt
        return scored(subtasks, embedded, name)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(confirmations, "score_model", killed)
        confirmation.run(TUNED, SEEDS[:1])
    rows = confirmation.run({LR: 0.4}, SEEDS[:1])
    undisturbed = replace(confirmation, folder=tmp_path / "undisturbed")
    assert repr(undisturbed.run({LR: 0.4}, SEEDS[:1])) == repr(rows)


@pytest.mark.slow
def test_whatever_the_scores_hang_on_is_confirmed_anew(
    confirmation: Confirmation, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(change: Confirmation, tuned: dict[str, float] = TUNED) -> list[str]:
        trained.clear()
        change.run(tuned, SEEDS[:1])
        return trained

    both = ["configured", "tuned"]
    assert run(confirmation) == both
    inputs = confirmation.inputs
    other = replace(inputs, training=replace(inputs.training, data_hash="other data"))
    assert run(replace(confirmation, inputs=other)) == both
    assert run(replace(confirmation, items=confirmation.items[:1])) == both
    # Other values leave what the configured ones have given.
    assert run(confirmation, {LR: 0.4}) == ["tuned"]
    assert run(confirmation) == []
    monkeypatch.setattr(scoring, "SCORING", scoring.SCORING + 1)
    assert run(confirmation) == both


def test_the_tuned_recipe_is_held_to_the_configured_one() -> None:
    found = as_comparison([], "world", {})
    assert list(found.models) == ["base", "configured", "tuned"]
    assert (found.dataset, found.rows, found.conclusions) == ("world", (), ())
