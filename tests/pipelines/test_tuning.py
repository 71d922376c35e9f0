"""What the nodes of tuning decide by themselves; tests/test_chain.py runs them."""

import io
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import optuna
import pandas as pd
import pytest
from pydantic import TypeAdapter

from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.core.files import record_json, write_json
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.records import Score
from compo_pipeline.core.settings import SettingsError, parse
from compo_pipeline.core.table_files import write_rows
from compo_pipeline.core.variants import VariantName
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED, compare, run_pairs
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pipelines.tuning import nodes
from compo_pipeline.project.settings import Parameters
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.tuning import cells
from compo_pipeline.tuning.selection import study_items
from compo_pipeline.tuning.settings import StudySettings, TuningSettings
from compo_pipeline.tuning.study import StudyPlan, work
from compo_pipeline.tuning.trial import TrialInputs, TunedRun

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


def tuning(seeds: int) -> TuningSettings:
    return TuningSettings(StudySettings("clic"), BenchmarksSettings(), confirmation=seeds)


def trial_inputs(shipped: Parameters, tmp_path: Path) -> TrialInputs:
    folders = {name: tmp_path / name for name in ("views", "root", "resume")}
    model = ModelSettings("scenes-base")
    training = TrainingInputs([], "data", model=model, settings=shipped.training, seed=4, **folders)
    return TrialInputs("clic", {}, training, shipped.evaluation)


@pytest.mark.parametrize(
    ("best", "seeds", "reason"),
    [
        ({"values": {"lr": 2}}, 0, "confirmation is 0"),
        (None, 3, "no trial meets"),
        ({"values": {"lr": 1}}, 3, "the configured values are the best"),
    ],
)
def test_only_better_values_are_confirmed(
    shipped: Parameters, tmp_path: Path, best: Any, seeds: int, reason: str
) -> None:
    study = {"best": best, "configured": {"lr": 1}}
    inputs = trial_inputs(shipped, tmp_path)
    given = (tuning(seeds), CommandOptions(), "default", tmp_path)
    assert reason in nodes.confirm_best(study, inputs, *given)["reason"]


def test_both_recipes_are_trained_with_fresh_seeds_and_compared_with_each_other(
    shipped: Parameters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        given = dict(one.split("=") for one in command[-1].removeprefix("--params=").split(","))
        right = 30 if given["variant"] == "lora+tuned" else 20
        scores = [
            Score(model, "sugar_crepe", "swap_att", "accuracy", str(k), f"{k}.jpg", (), k < n, None)
            for model, n in (("base", 10), ("clic", right))
            for k in range(40)
        ]
        place = tmp_path / "clic" / given["variant"] / f"seed={given['seed']}"
        models = {BASE: ComparedModel("base", "base"), FINE_TUNED: ComparedModel("clic", "CLIC")}
        names = {role: model.name for role, model in models.items()}
        rows = compare([scores], names, run_pairs(models), {})
        write_rows(place / "scores.parquet", scores, Score)
        write_json(place / "comparison.json", record_json(Comparison(models, tuple(rows))))
        commands.append(command[-1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(cells.subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    study = {"best": {"values": VALUES}, "configured": {"training.optimizer.lr": 0.1}}
    inputs = trial_inputs(shipped, tmp_path)
    given = (tuning(2), CommandOptions("smoke", {"dataset": "few"}), "lora", tmp_path)
    found = nodes.confirm_best(study, inputs, *given)
    own = "training.optimizer.lr=0.001,training.overwrite=true,evaluation.control=false"
    assert sorted(commands) == [
        *(f"--params=dataset=few,variant=lora+tuned,method=clic,{own},seed={k}" for k in (5, 6)),
        *(f"--params=dataset=few,variant=lora,method=clic,seed={k}" for k in (5, 6)),
    ]
    assert found["seeds"] == [5, 6]
    (row,) = parse(Comparison, found["suite"], "suite").rows
    assert [row.values[name].value for name in ("base", "configured", "tuned")] == [25, 50, 75]
    gain = row.against("configured")
    assert gain is not None and (gain.model, gain.value, gain.seeds) == ("tuned", 25, 2)

    before = list(commands)
    assert nodes.confirm_best(study, inputs, *given) == found and commands == before


@pytest.mark.usefixtures("mlflow_project")
def test_a_study_is_a_run_in_mlflow_with_a_table_of_its_trials(
    shipped: Parameters, tmp_path: Path, mlflow_project: Path
) -> None:
    tracking.configure(TrackingSettings(experiment="a study"), mlflow_project)

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("lr", 0, 1)
        if trial.number == 1:
            raise MemoryError("no memory")
        return 2.5

    settings = replace(tuning(0), study=StudySettings("clic", trials=3))
    work(StudyPlan(settings.study, tmp_path, {"lr": 0.5}, {}), objective)
    study = {"name": "clic", "configured": {"lr": 0.5}, "best": None, "trials": {"complete": 2}}
    paths = replace(shipped.paths, tuning=str(tmp_path))
    own = (trial_inputs(shipped, tmp_path), settings, paths, "few", "default", Site())
    for _ in range(2):
        files = nodes.write_study(study, {"reason": ""}, *own)
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.params["configured.lr"] == "0.5"
    client = mlflow.MlflowClient()
    assert "page/trials.csv" in [one.path for one in client.list_artifacts(run.info.run_id, "page")]
    table = pd.read_csv(io.StringIO(str(files["trials.csv"])))
    assert [*table.state] == ["COMPLETE", "FAIL", "COMPLETE"] and table.params_lr[0] == 0.5
    assert "MemoryError: no memory" in table.iloc[1].to_list()


def test_a_method_without_a_space_says_where_to_put_one(
    shipped: Parameters, tmp_path: Path
) -> None:
    training, evaluation = trial_inputs(shipped, tmp_path).training, shipped.evaluation
    own = {"views": {}, "objective": {}}
    with pytest.raises(SettingsError, match=r"none for 'clic' \(known: clip\); add conf/base"):
        nodes.read_space(training, "clic", own, evaluation, {"clip": {}})


def test_missing_validation_questions_name_their_key(tmp_path: Path) -> None:
    benchmarks = BenchmarksSettings(str(tmp_path), str(tmp_path))
    with pytest.raises(SettingsError, match=r"^tuning.benchmarks, the validation items of a study"):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
    benchmarks = replace(benchmarks, sets={"sugar_crepe": BenchmarkSet()})
    remedy = "the folder at tuning.benchmarks.sets.sugar_crepe.root, or leave .* tuning.benchmarks"
    with pytest.raises(SettingsError, match=remedy):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
