"""Aliases of a sqlite registry move when, and only when, the gate passes."""

import itertools
import json
import runpy
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlflow
import pytest
from tests.registry.asked import aliases_of
from tests.waiting import until

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.models.loading import load
from compo_pipeline.registry import promotion
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.gate import fingerprint
from compo_pipeline.registry.promotion import Decision, PromotionError, promote, roll_back
from compo_pipeline.registry.settings import GateRule, SigningSettings
from compo_pipeline.registry.verification import VersionError
from compo_pipeline.registry.versions import find

SCRIPT = Path(__file__).with_name("promoting.py")
made = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
SETTINGS = made.SETTINGS
UNSIGNED = SigningSettings()


class Known:
    """Opens versions with so many items right; of a version with None, the files were changed.

    `meanwhile` is called while the versions are read.
    """

    def __init__(
        self,
        right: Mapping[int, int | None],
        base: int = 20,
        meanwhile: Callable[[], object] = lambda: None,
        measured: tuple[Overlap, ...] = (made.CLEAN,),
    ) -> None:
        self.right, self.base, self.meanwhile = right, base, meanwhile
        self.measured = measured

    def __call__(self, version: Any, *_: object) -> Any:
        self.meanwhile()
        number = int(version.version)
        count = self.right[number]
        if count is None:
            raise VersionError(f"version {number}: evidence/scores.parquet was changed")
        measured = self.measured if number == 3 else ()
        return made.opened(number, count, self.base, overlaps=measured)


numbers = itertools.count()


class Files(NamedTuple):
    """Of a version, with its tags."""

    folder: Path
    tags: dict[str, str]


@pytest.fixture(scope="module")
def files(
    version_files: Callable[..., dict[str, str]],
    tiny_model: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Files:
    folder = tmp_path_factory.mktemp("promoted")
    return Files(folder, version_files(load(tiny_model(seed=1)), folder) | {"base_model": "b"})


@pytest.fixture
def model(
    configure: Callable[[str], None], files: Files, sealed: Callable[..., Any], tmp_path: Path
) -> Iterator[str]:
    """A registered model of three versions, the third of them the challenger."""
    configure("promotion")
    client = mlflow.MlflowClient()
    name = f"promoted-{next(numbers)}"
    client.create_registered_model(name)
    for number in range(3):
        folder = shutil.copytree(files.folder, tmp_path / f"files of {number}")
        run_id = tracking.open_run("made", {})
        sealed(client.create_model_version(name, str(folder), run_id, tags=files.tags))
    client.set_registered_model_alias(name, "challenger", "3")
    yield name


def test_a_waiver_is_recorded_on_the_version_until_it_is_not_needed(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "verified", Known({3: 35}))
    rules = {
        "composition": GateRule("rise", role="composition"),
        "zero_shot": GateRule("hold", role="zero_shot"),
    }
    asking = replace(SETTINGS, gate=replace(SETTINGS.gate, rules=rules))
    refused = promote(model, "challenger", asking, UNSIGNED)
    assert (refused.outcome, refused.waived) == ("refused", [])
    assert "zero_shot (Zero-shot classification)" in refused.reason
    assert tags_of(model)["promotion.waived"] == "none"
    waiving = replace(asking, waive=("composition", "zero_shot"))
    promoted = promote(model, "challenger", waiving, UNSIGNED)
    # Composition was scored: its waiver was not needed.
    assert (promoted.outcome, promoted.waived) == ("promoted", ["zero_shot"])
    tags = tags_of(model)
    assert tags["promotion.waived"] == "zero_shot" and "Waived: zero_shot." in promoted.reason
    assert tags["promotion.gate"] == fingerprint(waiving.gate, waiving.waive)
    assert promoted.gate != refused.gate


def test_a_version_that_was_scored_on_items_that_select_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting = {"retrieval": "tuning.benchmarks.retrieval.split"}

    def known(version: Any, *_: object) -> Any:
        return made.opened(int(version.version), 35, 20, selecting=selecting)

    monkeypatch.setattr(promotion, "verified", known)
    refused = promote(model, "challenger", SETTINGS, UNSIGNED)
    assert (refused.outcome, refused.reason) == ("refused", "Failed: evidence.")
    (check,) = refused.checks
    assert "items that select" in check.finding and selecting["retrieval"] in check.finding
    assert "registration.rescore=challenger" in check.finding


def tags_of(name: str, number: int = 3) -> dict[str, str]:
    return dict(mlflow.MlflowClient().get_model_version(name, str(number)).tags)


def put(name: str, **where: int) -> None:
    for alias, version in where.items():
        mlflow.MlflowClient().set_registered_model_alias(name, alias, str(version))


def promoted(name: str, files: Known, **settings: Any) -> Decision:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promotion, "verified", files)
        return promote(name, "challenger", replace(SETTINGS, **settings), UNSIGNED)


def test_a_better_challenger_becomes_champion(model: str) -> None:
    put(model, champion=1)
    decided = promoted(model, Known({1: 10, 3: 36}))
    assert aliases_of(model) == {"challenger": 3, "champion": 3, "previous": 1}
    assert (decided.outcome, decided.previous, decided.failed) == ("promoted", 1, False)
    written = tags_of(model, 3)
    assert written["promotion.outcome"] == "promoted"
    assert written["promotion.against"] == "champion, version 1"
    assert written["promotion.gate"] == fingerprint(SETTINGS.gate)
    found = json.loads(written["promotion.checks"])[0]
    assert (found["rule"], found["numbers"]["difference"]) == ("itt", 65.0)


def test_the_first_champion_is_compared_with_its_base(model: str) -> None:
    assert promoted(model, Known({3: 20}, base=36)).outcome == "refused"
    assert aliases_of(model) == {"challenger": 3}
    decided = promoted(model, Known({3: 36}, base=20))
    assert aliases_of(model) == {"challenger": 3, "champion": 3}
    assert decided.opponent == "its base, b"


def test_a_worse_challenger_is_refused_with_a_reason(model: str) -> None:
    put(model, champion=1, previous=2)
    decided = promoted(model, Known({1: 30, 3: 20}))
    assert aliases_of(model) == {"challenger": 3, "champion": 1, "previous": 2}
    assert decided.failed and "itt (SugarCrepe++ ITT swap att)" in decided.reason
    assert tags_of(model, 3)["promotion.outcome"] == "refused"
    assert tags_of(model, 3)["promotion.reason"] == decided.reason


@pytest.mark.parametrize("changed", [1, 3])
def test_a_version_with_changed_files_refuses(model: str, changed: int) -> None:
    put(model, champion=1)
    decided = promoted(model, Known({1: 10, 3: 36, changed: None}))
    assert (decided.outcome, decided.checks[0].rule) == ("refused", "files")
    assert f"version {changed}: evidence/scores.parquet was" in decided.checks[0].finding
    # A champion whose files were changed can lose its alias.
    assert "without the alias 'champion'" in decided.checks[0].finding
    assert aliases_of(model)["champion"] == 1


def test_contamination_is_that_of_the_challenger(model: str) -> None:
    put(model, champion=1)
    known = Overlap("sugar_crepe_pp", "swap_att", 9, 1, 0, 9, 0)
    decided = promoted(model, Known({1: 10, 3: 36}, measured=(known,)))
    failed = [check.subject for check in decided.checks if not check.passed]
    assert (failed, decided.outcome) == (["sugar_crepe_pp swap_att"], "refused")


@pytest.mark.parametrize("right", [20, 36])
def test_a_dry_run_changes_nothing(model: str, right: int) -> None:
    put(model, champion=1, previous=2)
    before = aliases_of(model), tags_of(model, 1), tags_of(model, 3)
    decided = promoted(model, Known({1: 20, 3: right}), dry_run=True)
    assert decided.outcome == ("promoted" if right > 20 else "refused")
    assert (aliases_of(model), tags_of(model, 1), tags_of(model, 3)) == before
    assert "dry run" in decided.summary()


def test_a_champion_is_not_promoted_again(model: str) -> None:
    put(model, champion=3, previous=1)
    decided = promoted(model, Known({}))
    assert (decided.outcome, decided.failed) == ("unchanged", False)
    assert aliases_of(model) == {"challenger": 3, "champion": 3, "previous": 1}
    assert "promotion.outcome" not in tags_of(model, 3)


def test_nothing_to_promote(model: str) -> None:
    mlflow.MlflowClient().delete_registered_model_alias(model, "challenger")
    with pytest.raises(PromotionError, match=r"registration\.alias"):
        promoted(model, Known({}))
    with pytest.raises(SettingsError, match=r"registration\.name: .* no model 'nobody'"):
        promoted("nobody", Known({}))


def test_rolling_back_restores_the_previous_champion_once(model: str) -> None:
    put(model, champion=1)
    promoted(model, Known({1: 10, 3: 36}))
    assert roll_back(model, replace(SETTINGS, dry_run=True), UNSIGNED).outcome == "rolled back"
    assert aliases_of(model) == {"challenger": 3, "champion": 3, "previous": 1}
    decided = roll_back(model, SETTINGS, UNSIGNED)
    assert (decided.version, decided.outcome) == (3, "rolled back")
    assert aliases_of(model) == {"challenger": 3, "champion": 1}
    written = tags_of(model, 3)
    assert written["promotion.outcome"] == "rolled back"
    # The checks of its promotion stay.
    assert json.loads(written["promotion.checks"])[0]["passed"]
    with pytest.raises(PromotionError, match="nothing to roll back"):
        roll_back(model, SETTINGS, UNSIGNED)
    assert aliases_of(model)["champion"] == 1
    # The same scores would pass again: a user has to delete the tag.
    with pytest.raises(PromotionError, match=r"version 3 .*was rolled back.*promotion\.outcome"):
        promoted(model, Known({1: 10, 3: 36}))
    mlflow.MlflowClient().delete_model_version_tag(model, "3", "promotion.outcome")
    assert promoted(model, Known({1: 10, 3: 36})).outcome == "promoted"


def dies(*_: object) -> None:
    raise KeyboardInterrupt


# The process dies where an alias would move.
DYING = mlflow.MlflowClient, "set_registered_model_alias", dies


def test_a_promotion_is_recorded_before_the_alias_moves(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(model, champion=1)
    monkeypatch.setattr(*DYING)
    with pytest.raises(KeyboardInterrupt):
        promoted(model, Known({1: 10, 3: 36}))
    monkeypatch.undo()
    assert tags_of(model, 3)["promotion.outcome"] == "promoted"
    assert promoted(model, Known({1: 10, 3: 36})).outcome == "promoted"
    assert aliases_of(model)["champion"] == 3


def test_a_roll_back_is_recorded_before_the_alias_moves(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(model, champion=3, previous=1)
    monkeypatch.setattr(*DYING)
    with pytest.raises(KeyboardInterrupt):
        roll_back(model, SETTINGS, UNSIGNED)
    monkeypatch.undo()
    assert tags_of(model, 3)["promotion.outcome"] == "rolled back"
    assert roll_back(model, SETTINGS, UNSIGNED).outcome == "rolled back"
    assert aliases_of(model) == {"challenger": 3, "champion": 1}


def test_a_champion_that_moved_during_the_comparison_ends_the_promotion(model: str) -> None:
    put(model, champion=1, previous=1)
    with pytest.raises(PromotionError, match="was version 1 .* is version 2 now; run again"):
        promoted(model, Known({1: 10, 3: 36}, meanwhile=lambda: put(model, champion=2)))
    assert aliases_of(model) == {"challenger": 3, "champion": 2, "previous": 1}
    assert "promotion.outcome" not in tags_of(model, 3)


@pytest.mark.slow
def test_two_processes_one_after_the_other(model: str, tmp_path: Path) -> None:
    put(model, champion=1, first=2, second=3)
    log = tmp_path / "log"

    def started(alias: str) -> subprocess.Popen[str]:
        arguments = [mlflow.get_registry_uri(), model, alias, str(tmp_path)]
        with log.open("a") as errors:
            return subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def decision_of(process: subprocess.Popen[str]) -> tuple[str, int]:
        decided = json.loads(process.communicate()[0].splitlines()[-1])
        return decided["outcome"], decided["previous"]

    first = started("first")
    until((tmp_path / "first compares").exists)
    second = started("second")
    until((tmp_path / "second starts").exists)
    time.sleep(0.5)
    assert not (tmp_path / "second compares").exists()
    for alias in ("first", "second"):
        (tmp_path / f"{alias} goes on").touch()
    # The second one found the first one's champion and was compared with it.
    assert (decision_of(first), decision_of(second)) == (("promoted", 1), ("promoted", 2))
    assert aliases_of(model) == {
        "challenger": 3,
        "champion": 3,
        "first": 2,
        "previous": 2,
        "second": 3,
    }


def test_a_store_that_cannot_be_written_is_told_in_one_line(model: str) -> None:
    file = tracking.local_file(mlflow.get_registry_uri())
    assert file is not None
    lock = file.with_name(f"{file.name}.promotion.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(SettingsError, match=r"tracking\.uri: cannot use .*promotion\.lock"):
        promoted(model, Known({3: 36}))
    lock.rmdir()


def point(name: str, alias: str, number: int) -> None:
    """Let an alias name any number, as a registry does whose version was deleted meanwhile."""
    with sqlite3.connect(str(tracking.local_file(mlflow.get_registry_uri()))) as database:
        where = "WHERE name = ? AND alias = ?"
        statement = f"UPDATE registered_model_aliases SET version = ? {where}"
        assert database.execute(statement, (number, name, alias)).rowcount == 1
    database.close()


@pytest.mark.parametrize("alias", ["challenger", "champion", "previous"])
def test_an_alias_of_no_version_is_one_line(model: str, alias: str) -> None:
    put(model, champion=2, previous=1)
    point(model, alias, 9)
    where = f"'{alias}' of {model} names version 9, which does not exist; delete the alias"
    with pytest.raises(SettingsError, match=where):
        if alias == "previous":
            roll_back(model, SETTINGS, UNSIGNED)
        else:
            promoted(model, Known({2: 10, 3: 36}))
    with pytest.raises(SettingsError, match=where):
        find(model, alias, None)
