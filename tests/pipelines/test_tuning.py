"""What the nodes of tuning decide by themselves; tests/test_chain.py runs them."""

from dataclasses import replace
from pathlib import Path

import pytest

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.pipelines.tuning import nodes as tuning
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.selection import study_items

VALUES = {"training.optimizer.lr": 0.001}


def test_commands_of_the_best_values_say_what_this_run_was_told() -> None:
    given = {"seed": 1, "training": {"epochs": 2}, "tuning": {"study": {"trials": 3}}}
    run = tuning._tuned_run({"env": "smoke", "params": given})
    assert run == TunedRun("smoke", {"seed": 1, "training.epochs": 2, "variant": "tuned"})


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
    found = tuning._nothing_to_confirm({"best": best, "configured": {"lr": 1}}, seeds)
    assert found is None if reason is None else reason in str(found)


def test_a_method_without_a_space_says_where_to_put_one() -> None:
    with pytest.raises(SettingsError, match=r"none for 'clic' \(known: clip\); add conf/base"):
        tuning._space({"clip": {}}, "clic", {})


def test_missing_validation_questions_name_their_key(tmp_path: Path) -> None:
    benchmarks = BenchmarksSettings(str(tmp_path), str(tmp_path))
    with pytest.raises(SettingsError, match=r"^tuning.benchmarks, the validation items of a study"):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
    benchmarks = replace(benchmarks, sets={"sugar_crepe": BenchmarkSet()})
    remedy = "the folder at tuning.benchmarks.sets.sugar_crepe.root, or leave .* tuning.benchmarks"
    with pytest.raises(SettingsError, match=remedy):
        study_items(benchmarks, benchmarks, [], tmp_path, 1)
