"""The best trial is feasible, and its file runs as it says."""

import re
import shlex
import shutil
from datetime import timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kedro.framework.cli.utils import _split_params
from kedro.framework.session import KedroSession

from compo_pipeline.configuration.settings import leaves, overlay, with_values
from compo_pipeline.methods.registry import build
from compo_pipeline.pipelines.tuning.nodes import name_tuned_run
from compo_pipeline.run.provenance import CommandOptions
from compo_pipeline.tuning import results
from compo_pipeline.tuning.results import (
    TunedRun,
    baseline,
    best,
    feasible,
    front,
    steps,
    summary,
    write,
)

BOTH = ("maximize", "maximize")
RUN = TunedRun(None, {"variant": "default+tuned"}, "clic")


def numbers(trials):
    return [found.number for found in trials]


def test_the_best_meets_its_constraints(make):
    study = make.study(
        make.trial(90.0, drop=0.5), make.trial(70.0, drop=0.0), make.trial(80.0, drop=-1.0)
    )
    assert numbers(feasible(study)) == [1, 2]
    assert best(study).number == 2 and numbers(front(study)) == [2]


def test_trials_that_did_not_finish_are_never_the_best(make):
    study = make.study(make.pruned(99.0, 5), make.failed("no memory"), make.trial(10.0))
    assert best(study).number == 2
    assert best(make.study(make.pruned(99.0, 5), make.failed("no memory"))) is None
    assert best(make.study()) is None and front(make.study()) == []


def test_the_direction_counts_and_the_earliest_of_equals_wins(make):
    assert (
        best(
            make.study(make.trial(3.0), make.trial(1.0), make.trial(1.0), directions=["minimize"])
        ).number
        == 1
    )


def test_the_front_of_two_objectives(make):
    study = make.study(
        make.trial(1.0, 9.0),
        make.trial(8.0, 8.0),
        make.trial(7.0, 7.0),  # beaten by the second
        make.trial(9.0, 1.0),
        make.trial(8.0, 8.0),  # equal to the second
        directions=BOTH,
    )
    assert numbers(front(study)) == [0, 1, 3]
    assert best(study).number == 1


def test_best_of_a_front_does_not_depend_on_units(make):
    values = [(1.0, 9.0), (6.0, 7.0), (9.0, 1.0)]
    plain = make.study(*(make.trial(*pair) for pair in values), directions=BOTH)
    scaled = make.study(*(make.trial(1000 * a, b - 50) for a, b in values), directions=BOTH)
    assert best(plain).number == best(scaled).number == 1


VALUES = st.lists(st.tuples(*[st.integers(-3, 3).map(float)] * 2), max_size=8)


@given(values=VALUES, directions=st.tuples(*[st.sampled_from(["maximize", "minimize"])] * 2))
def test_the_front_is_optunas_without_repetition(make, values, directions):
    study = make.study(*(make.trial(*pair) for pair in values), directions=directions)
    theirs = {tuple(found.values) for found in study.best_trials}
    assert [tuple(found.values) for found in front(study)] == list(
        dict.fromkeys(
            tuple(found.values) for found in feasible(study) if tuple(found.values) in theirs
        )
    )
    assert (best(study) is None) == (not values)


def test_the_configured_trial_is_found_by_its_values(make):
    study = make.study(make.failed("x"), make.trial(50.0, lr=2e-3, positives=4), make.trial(60.0))
    assert baseline(study, make.configured).number == 1
    assert baseline(study, {**make.configured, "training.optimizer.lr": 3e-3}) is None


@pytest.fixture
def study(make):
    return make.study(
        make.trial(66.5, lr=2e-3, positives=4, drop=-1.0),
        make.trial(71.25, lr=0.0034567890123, positives=3, drop=-0.25),
        make.trial(99.0, drop=4.0),
        make.failed("no memory"),
    )


def test_the_file_holds_values_and_says_whose(make, study, tmp_path):
    path = write(study, make.configured, tmp_path / "new", RUN)
    text = path.read_text()
    assert path.name == "best_params.yml"
    assert yaml.safe_load(text) == {
        "variants": {
            "clic": {
                "default+tuned": {
                    "training.optimizer.lr": 0.0034567890123,
                    "clic.objective.positives": 3,
                }
            }
        }
    }
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "trial 1 of 4 in the study 'clic-scenes'" in head[0]
    assert head[1] == "# score 71.25; the configured values (trial 0): score 66.5"
    assert head[2] == "# Constraints, met at 0 or below: drop -0.25"


def test_the_file_says_where_the_configured_values_break_a_constraint(make, tmp_path):
    plain = make.trial(-20.0, lr=2e-3, positives=4, drop=9.0, user_attrs={"score": 70.0})
    text = write(make.study(plain, make.trial(68.5, drop=-1.0)), make.configured, tmp_path, RUN)
    assert "(trial 0): score 70, but they violate a constraint" in text.read_text()


def test_every_trial_of_a_front_has_a_file(make, tmp_path):
    trials = [make.trial(1.0, 9.0), make.trial(8.0, 8.0, positives=5), make.trial(9.0, 1.0)]
    path = write(make.study(*trials, directions=BOTH), make.configured, tmp_path, RUN)
    values = yaml.safe_load(path.read_text())["variants"]["clic"]["default+tuned"]
    assert values["clic.objective.positives"] == 5
    assert (
        "objective 1 8, objective 2 8" in path.read_text()
        and "(trials 0, 1, 2)" in path.read_text()
    )
    files = {file.name for file in (tmp_path / results.FRONT).iterdir()}
    assert files == {"trial_0.yml", "trial_1.yml", "trial_2.yml"}
    assert write(make.study(trials[0], directions=BOTH), make.configured, tmp_path, RUN)
    assert not (tmp_path / results.FRONT).exists()


def test_no_recipe_is_left_where_there_is_none(make, study, tmp_path):
    path = write(study, make.configured, tmp_path, RUN)
    assert (
        write(
            make.study(make.failed("x"), make.trial(3.0, drop=1.0)),
            make.configured,
            tmp_path,
            RUN,
        )
        is None
    )
    assert not path.exists()


def test_a_running_study_is_written_as_far_as_it_is(make, tmp_path):
    study = make.study(make.trial(3.0))
    study.ask()
    assert "trial 0 of 2" in write(study, make.configured, tmp_path, RUN).read_text()


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
    assert got == overlay(values)
    assert repr(got) == repr(overlay(values)), "types are the same too"


def test_the_command_line_names_environment_method_and_variant():
    given = {"method": "fsc_clip", "fsc_clip.objective.gamma": 1, "variant": "lora+tuned"}
    run, values = TunedRun("fsc_scenes", given, "fsc_clip"), {"fsc_clip.objective.gamma": 1.5}
    assert run.command(values) == (
        "kedro run --pipeline=train_eval --env=fsc_scenes "
        "--params method=fsc_clip,fsc_clip.objective.gamma=1.5,variant=lora+tuned"
    )
    assert run.advice(values) == [
        "or add this entry to `variants` in conf/fsc_scenes/parameters.yml and run",
        "  kedro run --pipeline=train_eval --env=fsc_scenes "
        "--params method=fsc_clip,variant=lora+tuned",
    ]
    assert RUN.advice({}) == [
        "or add this entry to `variants` in conf/base/parameters_variants.yml and run",
        "  kedro run --pipeline=train_eval --params variant=default+tuned",
    ]


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
            loader = run.load_context().config_loader
            return loader["parameters"], loader["catalog"]

    return folder, load


@pytest.mark.parametrize(
    ("env", "given"),
    [
        ("base", {}),
        ("base", {"variant": "c1"}),
        ("base", {"variant": "datacomp+lora"}),
        ("base", {"variant": "mine", "training": {"optimizer": {"lr": 0.5, "warmup": 0.3}}}),
        ("fsc_scenes", {"variant": "fsc_scenes+lora"}),
        ("coco", {"variant": "published", "tuning": {"study": {"name": "wide"}}}),
        ("coco", {"variant": "lora+tuned", "clic": {"objective": {"positives": 4}}}),
    ],
)
def test_both_ways_of_running_a_recipe_train_what_the_study_confirmed(
    make, session, tmp_path, env, given
):
    """With the values of the study's variant, which may set a searched key itself."""
    folder, load = session
    line = f"kedro run --env={env} --params seed=0,{','.join(map('='.join, texts(given)))}"
    plain, _ = load(line.rstrip(","))
    method, variant = plain["method"], plain["variant"]
    done = make.study(make.trial(1.0, lr=0.0034567890123, positives=3, drop=-1.0))
    run = name_tuned_run(CommandOptions(env, given), method, variant)
    path = write(done, make.configured, tmp_path / "tuning", run)
    by_params, by_entry = re.findall(r"^#   (kedro run .*)$", path.read_text(), re.MULTILINE)

    def trained(params: dict[str, Any]) -> dict[str, Any]:
        """What a study's confirmation has of a configuration, and what the views are drawn by."""
        built = build(method, **params["method_settings"]).configuration
        names = ("model", "views", "counterfactuals", "foils", "data")
        return {"training": params["training"], method: built} | {n: params[n] for n in names}

    owners = ("training", method)
    values = {key: v for key, v in best(done).params.items() if key.partition(".")[0] in owners}
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


def test_a_summary_counts_trials_steps_and_seconds(make):
    trials = [
        make.trial(3.0, drop=-1.0, user_attrs={"steps": 600}),
        make.trial(4.0, drop=1.0, user_attrs={"steps": 600}),
        make.pruned(1.0, 2),
        make.failed("no memory"),
    ]
    trials[2].set_user_attr("steps", 300)
    for trial in trials[:2]:
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=90)
    study = make.study(*trials)
    study.ask()
    found = summary(study)
    ended = {"complete": 2, "pruned": 1, "fail": 1, "running": 1, "feasible": 1}
    assert found["trials"] == ended
    assert found["steps"] == 1500
    assert found["seconds"] == pytest.approx(180, abs=1)
    assert [steps(trial) for trial in study.trials] == [600, 600, 300, 0, 0]


def test_labels_are_the_shortest_ends_that_differ():
    names = ["a.weights.margin", "a.margins.beta", "b.beta", "training.optimizer.lr"]
    assert results.short_names(names) == {
        "a.weights.margin": "margin",
        "a.margins.beta": "margins.beta",
        "b.beta": "b.beta",
        "training.optimizer.lr": "lr",
    }
    assert results.short_names(["beta", "a.beta"]) == {"beta": "beta", "a.beta": "a.beta"}


def test_values_and_durations_as_text():
    values = {None: "null", True: "true", 3: "3", 0.00123456: "0.001235", "plain": "plain"}
    assert {value: results.format_value(value) for value in values} == values
    seconds = {None: "\N{EN DASH}", 0.25: "0.2 s", 42: "42 s", 99.9: "100 s", 600: "10 min"}
    seconds |= {5999: "100 min", 7200: "2.0 h"}
    assert {number: results.duration(number) for number in seconds} == seconds


def test_a_summary_of_nothing_is_one_of_zeros(make):
    assert summary(make.study()) == {"trials": {"feasible": 0}, "steps": 0, "seconds": 0}
