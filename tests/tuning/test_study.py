"""Beginning and joining a study, its first trials, its sampler and pruner."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.tuning import study as studies
from compo_pipeline.tuning.settings import (
    PrunerSettings,
    SamplerSettings,
    StorageSettings,
    StudySettings,
    WarmStartSettings,
)
from compo_pipeline.tuning.study import Plan, best_of, open_study, pruner, sampler
from compo_pipeline.tuning.workers import run


def plan(folder: Path, name: str = "s", **options: object) -> Plan:
    settings = StudySettings(name, storage=StorageSettings(None, 1, 3), **options)
    return Plan(settings, folder, ("minimize",), {"x": 0.5}, {"method": "clic", "steps": 500})


def parabola(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -1, 1)
    trial.storage.set_trial_system_attr(trial._trial_id, "constraints:right", -x)
    return float(x) ** 2


def test_first_trials_are_queued_once_by_whoever_comes_first(tmp_path: Path) -> None:
    assert len(open_study(plan(tmp_path)).study.trials) == 1
    joined = open_study(plan(tmp_path)).study
    assert [trial.system_attrs["fixed_params"] for trial in joined.trials] == [{"x": 0.5}]


def test_another_study_of_the_same_name_is_refused(tmp_path: Path) -> None:
    open_study(plan(tmp_path))
    other = replace(plan(tmp_path), identity={"method": "clip", "steps": 500, "new": 1})
    with pytest.raises(SettingsError, match=r"name: a study 's' .* in method, new; its trials"):
        open_study(other)
    with pytest.raises(SettingsError, match="differs in directions"):
        open_study(replace(plan(tmp_path), directions=("maximize",)))


def test_warm_start_takes_the_best_that_fit(tmp_path: Path) -> None:
    old = run(plan(tmp_path, "old", trials=12), parabola)
    feasible = sorted((t.value, t.params["x"]) for t in old.trials if t.params["x"] >= 0)
    wanted = [x for _, x in feasible if x > 0.1 and x != 0.5][:2]
    warm = plan(tmp_path, "new", warm_start=WarmStartSettings("old", None, 2), trials=5)
    warm = replace(warm, fits=lambda values: values["x"] > 0.1 and values["x"] != 0.5)
    queued = open_study(warm).study.trials
    assert [t.system_attrs["fixed_params"]["x"] for t in queued] == [0.5, *wanted]
    assert [t.user_attrs["origin"] for t in queued] == ["configured"] + ["warm start"] * 2
    assert [t.params["x"] for t in run(warm, parabola).trials[:3]] == [0.5, *wanted]


def test_warm_start_from_an_unknown_study_names_the_known(tmp_path: Path) -> None:
    open_study(plan(tmp_path, "old"))
    warm = plan(tmp_path, "new", warm_start=WarmStartSettings("odl"))
    with pytest.raises(SettingsError, match=r"warm_start\.study: no study 'odl' .*known: .*old"):
        open_study(warm)


def test_best_of_several_objectives_is_the_front(tmp_path: Path) -> None:
    study = optuna.create_study(directions=["maximize", "maximize"])
    space = {"x": optuna.distributions.FloatDistribution(0, 9)}
    for x, values in enumerate([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0]]):
        study.add_trial(optuna.create_trial(params={"x": x}, distributions=space, values=values))
    assert best_of(study, 5, lambda values: True) == [{"x": 0}, {"x": 1}]


def test_sampler_is_seeded_by_what_has_begun() -> None:
    def first(seed: int, begun: int, name: str) -> float:
        settings = SamplerSettings(name)  # type: ignore[arg-type]
        study = optuna.create_study(sampler=sampler(settings, seed, begun))
        return float(study.ask().suggest_float("x", 0, 1))

    for name in ("tpe", "random"):
        assert first(0, 3, name) == first(0, 3, name)
        assert len({first(0, 3, name), first(0, 4, name), first(1, 3, name)}) == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("median", optuna.pruners.MedianPruner),
        ("hyperband", optuna.pruners.HyperbandPruner),
        ("successive_halving", optuna.pruners.SuccessiveHalvingPruner),
        ("none", optuna.pruners.NopPruner),
    ],
)
def test_pruners(name: str, kind: type) -> None:
    assert isinstance(pruner(PrunerSettings(name)), kind)  # type: ignore[arg-type]


def test_what_was_begun_by_a_worker_that_died_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(studies, "_enqueue_first", dies)
        open_study(plan(tmp_path))
    assert len(open_study(plan(tmp_path)).study.trials) == 1
