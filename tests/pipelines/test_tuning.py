"""What the nodes of tuning decide by themselves; tests/test_chain.py runs them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.configuration.variants import VariantName
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pipelines.tuning import nodes
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.run.provenance import CommandOptions
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.selection import study_items
from compo_pipeline.tuning.trial import TrialInputs

VALUES = {"training.optimizer.lr": 0.001}


def test_commands_of_the_best_values_say_what_this_run_was_told() -> None:
    given: dict[str, Any] = {
        "seed": 1,
        "training": {"epochs": 2},
        "tuning": {"study": {"trials": 3}},
    }
    told = {"seed": 1, "training.epochs": 2}
    run = nodes.name_tuned_run(CommandOptions("smoke", given), "clic", "lora")
    assert run == TunedRun("smoke", {**told, "variant": "lora+tuned"}, "clic")


def test_studies_of_one_variant_have_variants_of_their_own() -> None:
    names = {
        nodes.name_tuned_run(
            CommandOptions("smoke", {"tuning": {"study": {"name": name}}}), "clic", "lora"
        ).given["variant"]
        for name in ("wide", "of mine", "of/mine", "x" * 250)
    }
    assert len(names) == 4 and "lora+tuned-wide" in names
    assert all(TypeAdapter(VariantName).validate_python(name) for name in names)


@pytest.mark.parametrize(
    ("best", "seeds", "reason"),
    [
        ({"values": {"lr": 2}}, 0, "seeds is 0"),
        (None, 3, "no trial meets"),
        ({"values": {"lr": 1}}, 3, "the configured values are the best"),
        ({"values": {"lr": 2}}, 3, None),
    ],
)
def test_only_better_values_are_confirmed(
    best: dict[str, dict[str, int]] | None, seeds: int, reason: str | None
) -> None:
    found = nodes._nothing_to_confirm({"best": best, "configured": {"lr": 1}}, seeds)
    assert found is None if reason is None else reason in str(found)


def test_a_method_without_a_space_says_where_to_put_one(
    shipped: RunSettings, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("views", "root", "resume")}
    model = ModelSettings("scenes-base")
    training = TrainingInputs([], "data", model=model, settings=shipped.training, seed=0, **folders)
    inputs = TrialInputs("clic", {}, training, shipped.evaluation)
    with pytest.raises(SettingsError, match=r"none for 'clic' \(known: clip\); add conf/base"):
        nodes.read_space(inputs, {"clip": {}})


def test_missing_validation_questions_name_their_key(tmp_path: Path) -> None:
    benchmarks = BenchmarksSettings(str(tmp_path), str(tmp_path))
    with pytest.raises(SettingsError, match=r"^tuning.benchmarks, the validation items of a study"):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
    benchmarks = replace(benchmarks, sets={"sugar_crepe": BenchmarkSet()})
    remedy = "the folder at tuning.benchmarks.sets.sugar_crepe.root, or leave .* tuning.benchmarks"
    with pytest.raises(SettingsError, match=remedy):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
