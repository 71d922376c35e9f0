"""Creating and joining a study: database, lock, fingerprint, first trials, sampler and pruner."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from compo_pipeline.configuration.settings import SettingsError, parse
from compo_pipeline.tuning import study as studies
from compo_pipeline.tuning.settings import (
    ObjectiveSettings,
    PrunerSettings,
    SamplerSettings,
    StorageSettings,
    StudySettings,
    WarmStartSettings,
)
from compo_pipeline.tuning.space import Parameter, Space
from compo_pipeline.tuning.study import StudyPlan, connect, open_study, pruner, sampler

SPACE = Space((Parameter("x", FloatDistribution(0.1, 1)),))


def plan(folder: Path, name: str = "s", **options: Any) -> StudyPlan:
    settings = StudySettings(name, storage=StorageSettings(None, 1, 3), **options)
    fingerprint = {"method": "clic", "steps": 500}
    return StudyPlan(settings, folder, SPACE, {"x": 0.5}, ("minimize",), fingerprint)


def test_workers_of_a_new_postgresql_database_begin_at_once(tmp_path: Path, postgres: str) -> None:
    settings = StorageSettings(postgres)
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: connect(settings, tmp_path), range(4)))
    assert [optuna.get_all_study_names(storage) for storage in opened] == [[]] * 4


def queued(plan: StudyPlan) -> list[Any]:
    return [trial.system_attrs["fixed_params"] for trial in open_study(plan).trials]


def test_the_configured_values_are_queued_once(tmp_path: Path) -> None:
    assert queued(plan(tmp_path)) == queued(plan(tmp_path)) == [{"x": 0.5}]


def test_a_study_with_another_fingerprint_is_refused(tmp_path: Path) -> None:
    open_study(plan(tmp_path))
    other = replace(plan(tmp_path), fingerprint={"method": "clip", "steps": 500, "new": 1})
    with pytest.raises(SettingsError, match=r"name: a study 's' .* in method, new; its trials"):
        open_study(other)
    with pytest.raises(SettingsError, match="differs in directions"):
        open_study(replace(plan(tmp_path), directions=("maximize",)))


@pytest.mark.parametrize(
    ("direction", "best"), [("minimize", [0.2, 0.3]), ("maximize", [0.9, 0.3])]
)
def test_warm_start_queues_the_best_feasible_trials_inside_the_space(
    tmp_path: Path, direction: Any, best: list[float]
) -> None:
    old = replace(plan(tmp_path, "old"), directions=(direction,), configured={"x": 0.5})
    study = open_study(old)
    # Infeasible, outside the space, the configured value, and three others.
    for x, drop in ((0.15, 1.0), (0.05, -1.0), (0.5, -1.0), (0.2, -1.0), (0.3, 0.0), (0.9, -1.0)):
        distributions = {"x": FloatDistribution(0, 1)}
        value = x if direction == "minimize" or x != 0.2 else 0.0
        study.add_trial(
            optuna.create_trial(
                params={"x": x},
                distributions=distributions,
                value=value if x != 0.5 else {"minimize": 9.0, "maximize": -9.0}[direction],
                constraints={"drop": drop},
            )
        )
    new = plan(tmp_path, "new", warm_start=WarmStartSettings("old", None, 2))
    assert queued(replace(new, directions=(direction,))) == [{"x": x} for x in [0.5, *best]]
    origins = [trial.user_attrs["origin"] for trial in open_study(
        replace(new, directions=(direction,))
    ).trials]  # fmt: skip
    assert origins == ["configured", "warm start", "warm start"]


def test_warm_start_of_two_objectives_queues_the_front(tmp_path: Path) -> None:
    both = ("maximize", "maximize")
    old = open_study(replace(plan(tmp_path, "old"), directions=both))
    for x, values in ((0.2, [1.0, 3.0]), (0.3, [2.0, 2.0]), (0.4, [1.0, 1.0])):
        distributions = {"x": FloatDistribution(0, 9)}
        old.add_trial(
            optuna.create_trial(params={"x": x}, distributions=distributions, values=values)
        )
    url = f"sqlite:///{tmp_path / 'study.db'}"
    new = plan(tmp_path / "elsewhere", "new", warm_start=WarmStartSettings("old", url))
    assert queued(new) == [{"x": 0.5}, {"x": 0.2}, {"x": 0.3}]


def test_warm_start_from_an_unknown_study_names_the_known(tmp_path: Path) -> None:
    open_study(plan(tmp_path, "old"))
    warm = plan(tmp_path, "new", warm_start=WarmStartSettings("odl"))
    with pytest.raises(SettingsError, match=r"warm_start\.study: no study 'odl' .*known: .*old"):
        open_study(warm)


def test_the_sampler_is_seeded_by_the_number_of_trials() -> None:
    def first(seed: int, begun: int, name: Any) -> float:
        study = optuna.create_study(sampler=sampler(SamplerSettings(name), seed, begun))
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
def test_pruners(name: Any, kind: type) -> None:
    assert isinstance(pruner(PrunerSettings(name)), kind)


def test_the_next_worker_completes_what_a_killed_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(studies, "_enqueue_first", killed)
        open_study(plan(tmp_path))
    assert queued(plan(tmp_path)) == [{"x": 0.5}]


def test_the_database_is_a_file_in_the_folder_unless_named(tmp_path: Path) -> None:
    odd = tmp_path / "odd {name} %20"
    assert str(connect(StorageSettings(), odd).engine.url).startswith("sqlite:////")
    assert (odd / "study.db").is_file()
    named = tmp_path / "named.db"
    connect(StorageSettings(f"sqlite:///{named}"), tmp_path).get_all_studies()
    with sqlite3.connect(named) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", "got a value that is no URL"),
        ("sqlite://", "expected sqlite:///<file>"),
        ("mysql://me:secret@host/db", r"got mysql://\*\*\*@host/db"),
        ("postgresql://me:secret@localhost:1/db", r"cannot use postgresql\+psycopg://\*\*\*@"),
        ("postgresql+nodriver://me:secret@host/db", r"needs a driver: pip install .*\[postgres\]"),
    ],
)
def test_other_urls_are_refused_without_their_password(
    tmp_path: Path, url: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        connect(StorageSettings(url), tmp_path)
    assert "tuning.study.storage.url" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trials": 0}, r"tuning\.study\.trials: .* \(got 0\)"),
        ({"sampler": {"name": "grid"}}, r"sampler\.name: .*'tpe' or 'random' \(got 'grid'\)"),
        ({"pruner": {"reduction_factor": 1}}, r"reduction_factor: .* 2 \(got 1\)"),
        ({"storage": {"hearbeat": 1}}, "did you mean 'heartbeat'"),
        ({"storage": {"heartbeat": 5, "grace": 5}}, r"storage\.grace: expected more than .* got 5"),
        ({"workers": "all"}, r"workers: .*\(got 'all'\)"),
    ],
)
def test_wrong_settings_name_their_key_but_no_password(
    values: dict[str, Any], message: str
) -> None:
    url = {"url": "postgresql://me:secret@host/db"}
    given = {"name": "s", **values, "storage": {**url, **values.get("storage", {})}}
    with pytest.raises(SettingsError, match=message) as caught:
        parse(StudySettings, given, "tuning.study")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"maximise": []}, "maximise"),
        ({"penalty": -1}, "penalty"),
        ({"retrieval": {"drop": -1}}, "drop"),
    ],
)
def test_an_objective_without_figures_or_with_negative_points_is_refused(
    values: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError, match=key):
        parse(ObjectiveSettings, values, "tuning.objective")


def test_the_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with plan(tmp_path).lock():
            order.append("second")

    with pytest.raises(RuntimeError), plan(tmp_path).lock():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
        raise RuntimeError
    thread.join()
    assert order == ["first", "second"]


def test_a_waiting_trial_is_taken_by_one_worker(tmp_path: Path) -> None:
    """With sqlite's default transactions several workers would take it."""
    study = open_study(plan(tmp_path))
    storages = [connect(plan(tmp_path).settings.storage, tmp_path) for _ in range(4)]
    for number in range(1, 11):
        study.enqueue_trial({"x": 0.1})
        wanted = study.trials[number]._trial_id
        with ThreadPoolExecutor(4) as pool:
            taken = list(
                pool.map(
                    lambda storage, id_=wanted: storage.set_trial_state_values(
                        id_, TrialState.RUNNING
                    ),
                    storages,
                )
            )
        assert sorted(taken) == [False, False, False, True]
