"""Optuna's plots of a study, or the reason why a plot cannot be drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna import Study, visualization
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.results import metric_names, scores, short_names

# With fewer trials, importances are noise.
_MIN_TRIALS_FOR_IMPORTANCE = 8
_STYLE: dict[str, Any] = {
    "title": None,
    "template": "plotly_white",
    "colorway": ["#0f6b6f", "#c08a2d", "#7a4e7e", "#8a8f98", "#b0392b", "#14735a"],
    "font": {
        "family": '-apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, Helvetica, sans-serif',
        "size": 13,
        "color": "#22201c",
    },
    "paper_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 60, "r": 30, "t": 40, "b": 60},
    "height": 420,
    "autosize": True,
    "width": None,
}


@dataclass(frozen=True, slots=True)
class StudyPlot:
    """An Optuna plot with title and note, or the reason why it cannot be drawn."""

    title: str
    note: str
    figure: go.Figure | None = None
    missing: str = ""


def snapshot(study: Study, change: Callable[[FrozenTrial], None] | None = None) -> Study:
    """Copy a study into memory, where it does not change while workers continue.

    Args:
        study: finished or running.
        change: applied to the copy of each trial.
    """
    copy = optuna.create_study(study_name=study.study_name, directions=study.directions)
    for trial in study.get_trials():
        if change is not None:
            change(trial)
        copy.add_trial(trial)
    return copy


def readable(study: Study) -> Study:
    """Copy a study with short parameter names, and objective values without penalties."""
    short = short_names(name for trial in study.get_trials(deepcopy=False) for name in trial.params)

    def change(trial: FrozenTrial) -> None:
        trial.params, trial.distributions = (
            {short[name]: value for name, value in trial.params.items()},
            {short[name]: value for name, value in trial.distributions.items()},
        )
        if trial.state == TrialState.COMPLETE:
            trial.values = scores(trial)

    return snapshot(study, change)


def plots(study: Study) -> list[StudyPlot]:
    """All plots of an Optuna study, in the order of the page."""
    return list(_plots(readable(study)))


def _plots(study: Study) -> Iterator[StudyPlot]:
    """Yield the plots of a study: trade-off, objectives, parallel coordinates and curves."""
    names = metric_names(study)
    if len(names) > 1:
        yield _make_plot(
            "Trade-off",
            "Each point is a finished trial; no trial is better than the red ones, the Pareto "
            "front, in every objective: the means of `tuning.objective.maximise` and `.second`.",
            _missing_reason(study, 1),
            lambda: visualization.plot_pareto_front(study, target_names=names),
        )
    for place in range(len(names)):
        yield from _objective_plots(study, place)
    yield _make_plot(
        "Parallel coordinates",
        "Each line is a finished trial; None: the parameter was not searched with the other "
        "values.",
        _missing_reason(study, 2, parameters=1),
        lambda: visualization.plot_parallel_coordinate(study, target_name=names[0]),
    )
    if len(names) == 1:
        reported = any(trial.intermediate_values for trial in study.get_trials(deepcopy=False))
        yield _make_plot(
            "Curves",
            "Values that trials reported during training, penalty included; a line that ends "
            "early was pruned.",
            "" if reported else "No trial has reported a value during training.",
            lambda: visualization.plot_intermediate_values(study).update_yaxes(title=names[0]),
        )


def _objective_plots(study: Study, place: int) -> Iterator[StudyPlot]:
    """Yield the plots of one objective: history, parameter importance and slices."""
    name, several = metric_names(study)[place], len(study.directions) > 1
    suffix = f": {name}" if several else ""
    sign = -1 if study.directions[place] == StudyDirection.MAXIMIZE else 1

    def value(trial: FrozenTrial) -> float:
        return float(trial.values[place])

    def loss(trial: FrozenTrial) -> float:
        return sign * value(trial)

    target: dict[str, Any] = {"target": value if several else None, "target_name": name}
    # Importances explain low values; Optuna turns those of a single objective itself.
    importance = {**target, "target": loss if several else None}
    yield _make_plot(
        f"History{suffix}",
        "The finished trials in the order of their start; pale ones violate a constraint. Values "
        "are without the penalty for that.",
        _missing_reason(study, 1),
        lambda: visualization.plot_optimization_history(study, **target),
    )
    yield _make_plot(
        f"Parameter importance{suffix}",
        "Share of each parameter in the differences between trials (PED-ANOVA). With few trials "
        "the order is a hint, and the numbers are less.",
        _missing_reason(study, _MIN_TRIALS_FOR_IMPORTANCE, parameters=2, differing=place),
        lambda: visualization.plot_param_importances(study, **importance).update_layout(
            xaxis_title="share", yaxis_title=None
        ),
    )
    yield _make_plot(
        f"Slices{suffix}",
        "Each parameter on its own; darker points are later trials, pale grey ones violate a "
        "constraint.",
        _missing_reason(study, 1, parameters=1),
        lambda: visualization.plot_slice(study, **target).update_xaxes(nticks=4),
    )


def _make_plot(title: str, note: str, missing: str, draw: Callable[[], go.Figure]) -> StudyPlot:
    """Draw an Optuna plot with its note, or give the reason why it cannot be drawn."""
    if missing:
        return StudyPlot(title, note, missing=missing)
    with warnings.catch_warnings():
        # The note already says that few trials give a rough estimate.
        warnings.simplefilter("ignore", UserWarning)
        return StudyPlot(title, note, draw().update_layout(**_STYLE))


def _missing_reason(
    study: Study, trials: int, parameters: int = 0, differing: int | None = None
) -> str:
    """Why an Optuna plot cannot be drawn (too few trials or parameters); empty if it can."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(finished) < trials:
        return f"Finished trials needed: {trials}; there are {len(finished)}."
    searched = {name for trial in finished for name in trial.params}
    if len(searched) < parameters:
        return f"Searched parameters needed: {parameters}; there are {len(searched)}."
    if differing is not None and len({trial.values[differing] for trial in finished}) == 1:
        return "All finished trials have the same value."
    return ""
