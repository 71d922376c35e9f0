"""The best trial is feasible, and its file runs as it says."""

import re
import shlex
import shutil
from datetime import timedelta
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kedro.framework.cli.utils import _split_params
from kedro.framework.session import KedroSession
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from pydantic_core import to_jsonable_python

from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.settings import leaves, with_values
from compo_pipeline.methods.registry import build
from compo_pipeline.pipelines.tuning.nodes import name_tuned_run
from compo_pipeline.tuning.trial import TunedRun, best_trial, summary

LR, POSITIVES = "training.optimizer.lr", "clic.objective.positives"
SPACE = {LR: FloatDistribution(1e-4, 1e-2, log=True), POSITIVES: IntDistribution(1, 5)}


def study(*trials: FrozenTrial) -> optuna.Study:
    created = optuna.create_study(study_name="clic-scenes", direction="maximize")
    created.add_trials(trials)
    return created


def trial(value: float, drop: float = -1.0, lr: float = 1e-3, positives: int = 2) -> FrozenTrial:
    return optuna.create_trial(
        value=value,
        params={LR: lr, POSITIVES: positives},
        distributions=SPACE,
        constraints={"drop": drop},
        user_attrs={"score": value, "steps": 600},
    )


FAILED = optuna.create_trial(state=TrialState.FAIL)


def test_the_best_has_finished_and_meets_its_constraints() -> None:
    found = best_trial(study(trial(90.0, drop=0.5), trial(70.0, drop=0.0), trial(80.0), FAILED))
    assert found is not None and found.number == 2
    assert best_trial(study(trial(90.0, drop=0.5), FAILED)) is None
    assert best_trial(study(FAILED)) is None and best_trial(study()) is None


def test_a_summary_counts_trials_steps_and_seconds() -> None:
    trials = [trial(3.0), trial(4.0), FAILED]
    for one in trials[:2]:
        one.datetime_start = one.datetime_complete - timedelta(seconds=90)
    found = summary(study(*trials))
    assert (found["trials"], found["steps"]) == ({"complete": 2, "fail": 1}, 1200)
    assert found["seconds"] == pytest.approx(180, abs=1)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["squared", "minmax_sparse", "cuda:1", "null", "true", "1e-3", "0", "no"]),
)


@given(st.dictionaries(st.sampled_from(["a", "b.c", "b.d.e", "f_g.h"]), SCALARS, min_size=1))
def test_the_command_line_says_the_same_as_the_file(values):
    words = shlex.split(TunedRun(None, {}, "clic").command(values))
    assert words[:3] == ["kedro", "run", "--pipeline=train_eval"]
    assert words[3] == "--params"
    got = _split_params(None, None, words[4])
    assert got == with_values({}, values)
    assert repr(got) == repr(with_values({}, values)), "types are the same too"


@pytest.fixture
def session(bootstrapped, tmp_path, monkeypatch):
    """Parameters and catalog of a session in a project of its own; `conf` is a copy."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("pyproject.toml", "src/compo_pipeline", "src/compo_scenes"):
        (folder / name).symlink_to(bootstrapped / name)
    shutil.copytree(bootstrapped / "conf", folder / "conf")
    monkeypatch.chdir(folder)

    def load(line):
        """What nodes get of a command line from the head of a recipe."""
        words = shlex.split(line)
        envs = [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
        runtime = _split_params(None, None, words[words.index("--params") + 1])
        with KedroSession.create(folder, env=(envs or ["base"])[0], runtime_params=runtime) as run:
            made = run.load_context()
            return to_jsonable_python(made.params), made.config_loader["catalog"]

    return folder, load


@pytest.mark.parametrize(
    ("env", "given"),
    [
        ("base", {}),
        ("base", {"variant": "mine", "training": {"optimizer": {"lr": 0.5, "warmup": 0.3}}}),
        ("coco", {"variant": "lora+tuned", "clic": {"objective": {"positives": 4}}}),
    ],
)
def test_both_ways_of_running_a_recipe_train_what_the_study_confirmed(
    session, tmp_path, env, given
):
    """With the values of the study's variant, which may set a searched key itself."""
    folder, load = session
    line = f"kedro run --env={env} --params seed=0,{','.join(map('='.join, texts(given)))}"
    plain, _ = load(line.rstrip(","))
    method, variant = plain["method"], plain["variant"]
    done = study(trial(1.0, lr=0.0034567890123, positives=3))
    path, best = tmp_path / "best_params.yml", done.best_trial
    name_tuned_run(CommandOptions(env, given), method, variant).write(done, best, path)
    by_params, by_entry = re.findall(r"^#   (kedro run .*)$", path.read_text(), re.MULTILINE)

    def trained(params: dict[str, Any]) -> dict[str, Any]:
        """What a study's confirmation has of a configuration, and what the views are drawn by."""
        built = build(method, **params["method_settings"]).configuration
        names = ("model", "views", "counterfactuals", "foils", "data")
        return {"training": params["training"], method: built} | {n: params[n] for n in names}

    owners = ("training", method)
    values = {key: v for key, v in best.params.items() if key.partition(".")[0] in owners}
    confirmed = with_values(trained(plain), values)
    found, catalog = load(by_params)
    assert trained(found) == confirmed
    place = folder / re.search(r"in (conf\S+) and run", path.read_text())[1]
    read = yaml.safe_load(place.read_text())
    merged = read.setdefault("variants", {}).setdefault(method, {})
    merged |= yaml.safe_load(path.read_text())["variants"][method]
    place.write_text(yaml.safe_dump(read))
    entered, entries = load(by_entry)
    assert trained(entered) == confirmed and entries == catalog
    assert found["variant"] == entered["variant"] != variant
    assert f"/{found['variant']}/" in catalog["checkpoint"]["filepath"]


def texts(given: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in leaves(given)]
