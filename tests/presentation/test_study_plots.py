"""Each plot is drawn from what it needs, or says what is lacking."""

import json
import warnings

import optuna
import pytest

from compo_pipeline.presentation.study_plots import plots, relabelled
from compo_pipeline.tuning.words import duration, labels, shown

LR = "training.optimizer.lr"


@pytest.fixture
def finished(made):
    """Ten finished trials, of which the rate decides."""
    trials = [
        made.trial(50.0 + 2000 * rate, lr=rate, positives=1 + place % 5, drop=place - 8.0)
        for place, rate in enumerate(1e-3 * step for step in range(1, 11))
    ]
    return made.study(*trials, made.stopped(20.0, 100), made.failed("no memory"))


def drawn(study):
    return {plot.title: plot.figure is not None for plot in plots(study)}


def lacking(study):
    return {plot.title: plot.missing for plot in plots(study) if plot.figure is None}


def test_a_finished_study_has_every_plot(finished):
    assert drawn(finished) == {
        "History": True,
        "What mattered": True,
        "Value by value": True,
        "All values together": True,
        "Curves": True,
    }


def test_two_objectives_have_a_front_and_each_its_own_plots(made):
    trials = [made.trial(rate, -rate * place) for place, rate in enumerate(range(9))]
    study = made.study(*trials, directions=("maximize", "maximize"), names=["itt", "top1"])
    found = drawn(study)
    assert next(iter(found)) == "Trade-off" and "Curves" not in found
    assert {"History: itt", "Value by value: top1", "What mattered: itt"} < set(found)
    assert all(found.values())


def test_importance_follows_the_direction(made):
    """Of two objectives too, what makes trials good counts, not what makes them bad."""
    trials = []
    for place in range(20):
        # Among the good trials the rate tells all, and among the bad ones the positives do.
        rate, positives = 1e-3 * (1 + place % 10), 1 + place % 5
        good = place % 10 >= 5
        value = 1000.0 * rate if good else -100.0 * positives
        trials.append((value, rate, positives))
    single = made.study(*(made.trial(v, lr=r, positives=p) for v, r, p in trials))
    double = made.study(
        *(made.trial(v, 0.5 * r, lr=r, positives=p) for v, r, p in trials),
        directions=("maximize", "maximize"),
    )

    def shares(study, title):
        figure = next(plot.figure for plot in plots(study) if plot.title == title)
        return dict(zip(figure.data[0].y, figure.data[0].x, strict=True))

    alone = shares(single, "What mattered")
    assert shares(double, "What mattered: objective 1") == pytest.approx(alone)


def test_an_empty_study_says_what_is_lacking(made):
    assert lacking(made.study()) == {
        "History": "This needs a finished trial; there is none yet.",
        "What mattered": "This needs at least 8 finished trials; there is none yet.",
        "Value by value": "This needs a finished trial; there is none yet.",
        "All values together": "This needs at least 2 finished trials; there is none yet.",
        "Curves": "No trial has reported a score on the way.",
    }
    assert set(lacking(made.study(made.failed("x"), made.failed("y")))) == set(
        lacking(made.study())
    )


def test_one_parameter_and_equal_values_cannot_be_told_apart(made):
    def one(value):
        return optuna.create_trial(
            value=value,
            params={LR: 1e-3},
            distributions={LR: optuna.distributions.FloatDistribution(1e-4, 1e-2)},
        )

    alone = made.study(*(one(float(value)) for value in range(9)))
    assert lacking(alone)["What mattered"] == (
        "This needs at least 2 parameters to compare; 1 was searched."
    )
    assert drawn(alone)["All values together"] and drawn(alone)["Value by value"]
    equal = made.study(*(made.trial(3.0, positives=1 + place % 5) for place in range(9)))
    assert "nothing made a difference" in lacking(equal)["What mattered"]


def test_plots_show_scores_without_the_penalty(made):
    study = made.study(
        made.trial(60.0, drop=-1.0), made.trial(-300.0, drop=37.0, user_attrs={"score": 70.0})
    )
    history = next(plot.figure for plot in plots(study) if plot.title == "History")
    shown_ = {float(y) for trace in history.data for y in trace.y if trace.mode == "markers"}
    assert shown_ == {60.0, 70.0}
    # The best so far is feasible all the same.
    best = next(trace for trace in history.data if trace.name == "Best Value")
    assert max(best.y) == 60.0


def test_a_copy_has_short_names_and_leaves_the_study_alone(finished):
    before = json.dumps([trial.params for trial in finished.trials])
    copy = relabelled(finished)
    assert [trial.number for trial in copy.trials] == list(range(12))
    assert set(copy.trials[0].params) == {"lr", "positives"}
    assert json.dumps([trial.params for trial in finished.trials]) == before


def test_a_running_study_is_drawn_as_it_stands(finished):
    finished.ask()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(drawn(finished).values())


def test_labels_are_the_shortest_ends_that_differ():
    names = ["a.weights.margin", "a.margins.beta", "b.beta", "training.optimizer.lr"]
    assert labels(names) == {
        "a.weights.margin": "margin",
        "a.margins.beta": "margins.beta",
        "b.beta": "b.beta",
        "training.optimizer.lr": "lr",
    }
    assert labels(["beta", "a.beta"]) == {"beta": "beta", "a.beta": "a.beta"}


def test_values_and_times_in_few_letters():
    assert [shown(v) for v in (None, True, 3, 0.00123456, "plain")] == [
        "null", "true", "3", "0.001235", "plain",
    ]  # fmt: skip
    assert [duration(s) for s in (0.25, 42, 99.9, 600, 5999, 7200)] == [
        "0.2 s", "42 s", "100 s", "10 min", "100 min", "2.0 h",
    ]  # fmt: skip
