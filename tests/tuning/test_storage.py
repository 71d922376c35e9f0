"""The database of a study: which one, what is shown of it, who may decide."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from optuna.trial import TrialState

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.tuning.settings import StorageSettings, StudySettings
from compo_pipeline.tuning.storage import Lock, connect, masked
from compo_pipeline.tuning.study import Plan, open_study


def plan(folder: Path, **storage: object) -> Plan:
    values = {"name": "s", "storage": {"heartbeat": 1, "grace": 3, **storage}}
    settings = parse(StudySettings, values, "tuning.study")
    return Plan(settings, folder, ("minimize",), {"x": 0.5})


def test_a_file_in_the_folder_unless_named(tmp_path: Path) -> None:
    odd = tmp_path / "odd {name} %20"
    assert masked(connect(StorageSettings(), odd)).startswith("sqlite:////")
    assert (odd / "study.db").is_file()
    named = tmp_path / "named.db"
    connect(StorageSettings(f"sqlite:///{named}"), tmp_path).get_all_studies()
    with sqlite3.connect(named) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", "got what is no URL"),
        ("sqlite://", "expected sqlite:///<file>"),
        ("mysql://me:secret@host/db", r"got mysql://me:\*\*\*@host/db"),
        ("postgresql://me:secret@localhost:1/db", r"cannot use postgresql\+psycopg://me:\*\*\*@"),
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
        ({"pruner": {"name": "x"}}, "'median', 'hyperband', 'successive_halving' or 'none'"),
        ({"pruner": {"reduction_factor": 1}}, r"reduction_factor: .* 2 \(got 1\)"),
        ({"storage": {"hearbeat": 1}}, "did you mean 'heartbeat'"),
        ({"workers": "all"}, r"workers: .*\(got 'all'\)"),
    ],
)
def test_wrong_settings_name_key_and_choices_but_no_password(
    values: dict[str, object], message: str
) -> None:
    url = {"url": "postgresql://me:secret@host/db"}
    given = {"name": "s", **values, "storage": {**url, **dict(values.get("storage", {}))}}
    with pytest.raises(SettingsError, match=message) as caught:
        parse(StudySettings, given, "tuning.study")
    assert "secret" not in caught.value.message


def test_grace_is_longer_than_the_heartbeat(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"storage\.grace: expected more than .* 5 s, got 5 s"):
        connect(StorageSettings(None, 5, 5), tmp_path)


def test_one_at_a_time_decides(tmp_path: Path) -> None:
    opened, other = open_study(plan(tmp_path)), open_study(plan(tmp_path))
    order: list[str] = []

    def second() -> None:
        with other.lock:
            order.append("second")

    with opened.lock:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    opened.lock.release()  # twice is once


def test_a_waiting_trial_is_taken_by_one_alone(tmp_path: Path) -> None:
    """Without its turn-taking transactions sqlite lets several believe it is theirs."""
    stores = [open_study(plan(tmp_path)).storage for _ in range(4)]
    study = open_study(plan(tmp_path)).study
    for number in range(1, 11):
        study.enqueue_trial({"x": 0.1})
        wanted = study.trials[number]._trial_id
        with ThreadPoolExecutor(4) as pool:
            taken = list(
                pool.map(
                    lambda s, w=wanted: s.set_trial_state_values(w, TrialState.RUNNING), stores
                )
            )
        assert sorted(taken) == [False, False, False, True]


def test_a_lock_of_one_study_only_when_asked(tmp_path: Path) -> None:
    storage = connect(StorageSettings(), tmp_path)
    lock = Lock(storage, "s")
    with pytest.raises(RuntimeError), lock:
        raise RuntimeError
    with lock:
        pass
