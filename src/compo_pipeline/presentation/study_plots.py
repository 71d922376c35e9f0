"""Plots of a study: what came when, what mattered, where the good values lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna import Study, visualization
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.tuning.outcome import measured, metric_names, snapshot
from compo_pipeline.tuning.words import labels

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Below this, which parameter mattered is a matter of luck.
_ENOUGH = 8
_COLOURS = ["#0f6b6f", "#c08a2d", "#7a4e7e", "#8a8f98", "#b0392b", "#14735a"]
_FONT = '-apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, or why there is none.

    Attributes:
        title: of its part of the page.
        note: how to read it.
        figure: for plotly; None where there is nothing to draw.
        missing: what is lacking for it.
    """

    title: str
    note: str
    figure: go.Figure | None = None
    missing: str = ""


def plots(study: Study) -> list[Plot]:
    """All plots of a study that stands still, in the order of a page."""
    return list(_plots(relabelled(study)))


def _plots(study: Study) -> Iterator[Plot]:
    names = metric_names(study)
    if len(names) > 1:
        yield _drawn(
            "Trade-off",
            "A point is a finished trial; red ones, the front, are beaten by no other one.",
            _lacking(study, 1),
            lambda: visualization.plot_pareto_front(study, target_names=names),
        )
    for place in range(len(names)):
        yield from _of_objective(study, place)
    yield _drawn(
        "All values together",
        "A line is a finished trial; None: the parameter was not searched beside the other values.",
        _lacking(study, 2, parameters=1),
        lambda: visualization.plot_parallel_coordinate(study, target_name=names[0]),
    )
    if len(names) == 1:
        reported = any(trial.intermediate_values for trial in study.get_trials(deepcopy=False))
        yield _drawn(
            "Curves",
            "What trials reported on the way, penalty included; those that fell behind were "
            "stopped there.",
            "" if reported else "No trial has reported a score on the way.",
            lambda: visualization.plot_intermediate_values(study).update_yaxes(title=names[0]),
        )


def _of_objective(study: Study, place: int) -> Iterator[Plot]:
    """The plots that show one objective; of several, each is asked for by itself."""
    name, several = metric_names(study)[place], len(study.directions) > 1
    suffix = f": {name}" if several else ""
    shown: dict[str, Any] = {"target": _target(place) if several else None, "target_name": name}
    yield _drawn(
        f"History{suffix}",
        "The finished trials in the order they were begun; pale ones break a constraint. Values "
        "are as measured, without the penalty that the search puts on that.",
        _lacking(study, 1),
        lambda: visualization.plot_optimization_history(study, **shown),
    )
    yield _drawn(
        f"What mattered{suffix}",
        "The share of each parameter in the differences between trials (PED-ANOVA). It is an "
        "estimate from few trials: take the order for a hint, the figures for less.",
        _lacking(study, _ENOUGH, parameters=2, differ=place),
        lambda: visualization.plot_param_importances(
            study, target=_loss(study, place), target_name=name
        ).update_layout(xaxis_title="share", yaxis_title=None),
    )
    yield _drawn(
        f"Value by value{suffix}",
        "Each parameter on its own; darker points came later, pale grey ones break a constraint.",
        _lacking(study, 1, parameters=1),
        lambda: visualization.plot_slice(study, **shown).update_xaxes(nticks=4),
    )


def _drawn(title: str, note: str, missing: str, draw: Callable[[], go.Figure]) -> Plot:
    if missing:
        return Plot(title, note, missing=missing)
    with warnings.catch_warnings():
        # That there are few trials for an estimate is what the note says.
        warnings.simplefilter("ignore", UserWarning)
        return Plot(title, note, _styled(draw()))


def _styled(figure: go.Figure) -> go.Figure:
    """The figure in the page's type and without a title: the page has one."""
    figure.update_layout(
        title=None,
        template="plotly_white",
        colorway=_COLOURS,
        font={"family": _FONT, "size": 13, "color": "#22201c"},
        paper_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 30, "t": 40, "b": 60},
        height=420,
        autosize=True,
        width=None,
    )
    return figure


def _lacking(study: Study, count: int, parameters: int = 0, differ: int | None = None) -> str:
    """What a study lacks for a plot, in words; empty where there is all of it."""
    finished = _complete(study)
    if len(finished) < count:
        wanted = "a finished trial" if count == 1 else f"at least {count} finished trials"
        return f"This needs {wanted}; there {_are(len(finished))}."
    searched = {name for trial in finished for name in trial.params}
    if len(searched) < parameters:
        wanted = "parameter" if parameters == 1 else f"at least {parameters} parameters"
        return f"This needs {wanted} to compare; {len(searched)} was searched."
    if differ is not None and len({trial.values[differ] for trial in finished}) == 1:
        return "All finished trials have the same value: nothing made a difference."
    return ""


def _are(count: int) -> str:
    return {0: "is none yet", 1: "is one"}.get(count, f"are {count}")


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _target(place: int) -> Callable[[FrozenTrial], float]:
    def value(trial: FrozenTrial) -> float:
        return float(trial.values[place])

    return value


def _loss(study: Study, place: int) -> Callable[[FrozenTrial], float] | None:
    """Importance is asked of low values; of a single objective Optuna turns them itself."""
    if len(study.directions) == 1:
        return None
    sign = -1 if study.directions[place] == StudyDirection.MAXIMIZE else 1
    return lambda trial: sign * float(trial.values[place])


def relabelled(study: Study) -> Study:
    """A copy with short names of parameters and values without penalty."""
    short = labels(name for trial in study.get_trials(deepcopy=False) for name in trial.params)

    def change(trial: FrozenTrial) -> None:
        trial.params, trial.distributions = (
            {short[name]: value for name, value in trial.params.items()},
            {short[name]: value for name, value in trial.distributions.items()},
        )
        if trial.state == TrialState.COMPLETE:
            trial.values = measured(trial)

    return snapshot(study, change)
