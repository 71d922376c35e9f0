"""Each plot is drawn from what it needs, or says what is lacking."""

import json
import warnings

import optuna
import pytest

from compo_pipeline.presentation.study_plots import plots, readable

LR = "training.optimizer.lr"


@pytest.fixture
def finished(make):
    """Ten finished trials, of which the rate decides."""
    trials = [
        make.trial(50.0 + 2000 * rate, lr=rate, positives=1 + place % 5, drop=place - 8.0)
        for place, rate in enumerate(1e-3 * step for step in range(1, 11))
    ]
    return make.study(*trials, make.pruned(20.0, 100), make.failed("no memory"))


def drawn(study):
    return {plot.title: plot.figure is not None for plot in plots(study)}


def lacking(study):
    return {plot.title: plot.missing for plot in plots(study) if plot.figure is None}


def test_a_finished_study_has_every_plot(finished):
    assert drawn(finished) == {
        "History": True,
        "Parameter importance": True,
        "Slices": True,
        "Parallel coordinates": True,
        "Curves": True,
    }


def test_two_objectives_have_a_front_and_each_its_own_plots(make):
    trials = [make.trial(rate, -rate * place) for place, rate in enumerate(range(9))]
    study = make.study(*trials, directions=("maximize", "maximize"))
    found = drawn(study)
    assert next(iter(found)) == "Trade-off" and "Curves" not in found
    assert {
        "History: objective 1",
        "Slices: objective 2",
        "Parameter importance: objective 1",
    } < set(found)
    assert all(found.values())


def test_importance_follows_the_direction(make):
    """Of two objectives too, what makes trials good counts, not what makes them bad."""
    trials = []
    for place in range(20):
        # Among the good trials the rate tells all, and among the bad ones the positives do.
        rate, positives = 1e-3 * (1 + place % 10), 1 + place % 5
        good = place % 10 >= 5
        value = 1000.0 * rate if good else -100.0 * positives
        trials.append((value, rate, positives))
    single = make.study(*(make.trial(v, lr=r, positives=p) for v, r, p in trials))
    double = make.study(
        *(make.trial(v, 0.5 * r, lr=r, positives=p) for v, r, p in trials),
        directions=("maximize", "maximize"),
    )

    def shares(study, title):
        figure = next(plot.figure for plot in plots(study) if plot.title == title)
        return dict(zip(figure.data[0].y, figure.data[0].x, strict=True))

    alone = shares(single, "Parameter importance")
    assert shares(double, "Parameter importance: objective 1") == pytest.approx(alone)


def test_an_empty_study_has_reasons_in_place_of_plots(make):
    reasons = lacking(make.study())
    assert len(reasons) == 5
    assert reasons["History"] == "Finished trials needed: 1; there are 0."
    assert reasons["Curves"] == "No trial has reported a value during training."
    assert lacking(make.study(make.failed("x"), make.failed("y"))) == reasons


def test_importance_needs_two_parameters_and_different_values(make):
    def one(value):
        return optuna.create_trial(
            value=value,
            params={LR: 1e-3},
            distributions={LR: optuna.distributions.FloatDistribution(1e-4, 1e-2)},
        )

    alone = make.study(*(one(float(value)) for value in range(9)))
    assert lacking(alone)["Parameter importance"] == "Searched parameters needed: 2; there are 1."
    assert drawn(alone)["Parallel coordinates"] and drawn(alone)["Slices"]
    equal = make.study(*(make.trial(3.0, positives=1 + place % 5) for place in range(9)))
    assert "the same value" in lacking(equal)["Parameter importance"]


def test_plots_show_scores_without_the_penalty(make):
    study = make.study(
        make.trial(60.0, drop=-1.0), make.trial(-300.0, drop=37.0, user_attrs={"score": 70.0})
    )
    history = next(plot.figure for plot in plots(study) if plot.title == "History")
    shown_ = {float(y) for trace in history.data for y in trace.y if trace.mode == "markers"}
    assert shown_ == {60.0, 70.0}
    # The best so far is feasible all the same.
    best = next(trace for trace in history.data if trace.name == "Best Value")
    assert max(best.y) == 60.0


def test_a_copy_has_short_names_and_leaves_the_study_alone(finished):
    before = json.dumps([trial.params for trial in finished.trials])
    copy = readable(finished)
    assert [trial.number for trial in copy.trials] == list(range(12))
    assert set(copy.trials[0].params) == {"lr", "positives"}
    assert json.dumps([trial.params for trial in finished.trials]) == before


def test_a_running_study_is_drawn_as_it_stands(finished):
    finished.ask()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(drawn(finished).values())
