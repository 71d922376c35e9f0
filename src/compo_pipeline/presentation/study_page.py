"""The page of a study: result, confirmation, plots and trials; it opens offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.trial import FrozenTrial, TrialState
from plotly.offline import get_plotlyjs

from compo_pipeline.presentation import pages
from compo_pipeline.presentation.study_plots import StudyPlot, plots, snapshot
from compo_pipeline.tuning import results
from compo_pipeline.tuning.confirmation import StoredConfirmation
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.retries import earlier_attempts, reason
from compo_pipeline.tuning.space import Space, Value
from compo_pipeline.tuning.trial import SCORE

_PAGE = "study.html"
_STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row of the table of trials on the page of an Optuna study."""

    number: int
    state: str
    remarks: tuple[str, ...]
    """Whether it has the configured values, is a retry or the best, and why it ended early."""
    values: tuple[float | None, ...]
    """Of the objectives, without penalty; of a pruned trial, the last one."""
    constraints: Mapping[str, float | None]
    params: Mapping[str, Value]
    """By short name."""
    seconds: float | None
    feasible: bool


def write(
    study: Study,
    configured: Mapping[str, Value],
    folder: Path,
    space: Space,
    run: TunedRun,
    confirmation: StoredConfirmation | None = None,
) -> Path:
    """Write `study.html`, the page of an Optuna study, as one self-contained file.

    Args:
        study: finished or running.
        configured: configured values of the searched settings.
        folder: for the page.
        space: search space.
        run: how the best values are used.
        confirmation: of the best values on the reported items.
    """
    study = snapshot(study)
    drawn = plots(study)
    context = {
        **_template_variables(study, configured, space, run),
        "confirmation": confirmation,
        "plots": [(plot, _plot_html(plot, place)) for place, plot in enumerate(drawn)],
        # plotly.js, once for all plots of the page.
        "library": f"<script>{get_plotlyjs()}</script>" if any(p.figure for p in drawn) else "",
    }
    filters = {
        "figure": _format_number,
        "value": results.format_value,
        "duration": results.duration,
    }
    return pages.write(folder / _PAGE, _PAGE, context, **filters)


def _template_variables(
    study: Study, configured: Mapping[str, Value], space: Space, run: TunedRun
) -> dict[str, Any]:
    """The variables of the study page's Jinja template."""
    trials = study.get_trials()
    best, plain = results.best(study), results.baseline(study, configured)
    table = rows(study, configured)
    states = [row.state for row in table]
    summary = results.summary(study)
    return {
        "title": study.study_name,
        "metrics": results.metric_names(study),
        "trials": table,
        "states": {state: states.count(state) for state in _STATES.values() if state in states},
        "steps": summary["steps"],
        "seconds": summary["seconds"],
        "feasible": summary["trials"]["feasible"],
        "constraints": list(table[0].constraints) if table else [],
        "short_names": results.short_names(name for trial in trials for name in trial.params),
        "chosen": best,
        "best": None if best is None else table[best.number],
        "plain": None if plain is None else table[plain.number],
        "front": results.front(study) if len(study.directions) > 1 else [],
        "configured": configured,
        "ranges": {parameter.name: parameter.described for parameter in space.parameters},
        "command": "" if best is None else run.command(best.params),
        "recipe": results.BEST,
    }


def rows(study: Study, configured: Mapping[str, Value]) -> list[TrialRow]:
    """Rows of the study page's table of trials, in the order of trial numbers."""
    trials = study.get_trials()
    short = results.short_names(name for trial in trials for name in trial.params)
    names = list(dict.fromkeys(name for trial in trials for name in trial.constraints))
    feasible = {trial.number for trial in results.feasible(study)}
    front = {trial.number for trial in results.front(study)}
    return [
        TrialRow(
            number=trial.number,
            state=_STATES[trial.state],
            remarks=tuple(_remarks(trial, configured, front)),
            values=_objective_values(trial, len(study.directions)),
            constraints={name: trial.constraints.get(name) for name in names},
            params={short[name]: value for name, value in trial.params.items()},
            seconds=trial.duration.total_seconds() if trial.duration else None,
            feasible=trial.number in feasible,
        )
        for trial in trials
    ]


def _remarks(trial: FrozenTrial, configured: Mapping[str, Value], front: set[int]) -> list[str]:
    """Remarks on a trial in the table: best, configured values, retry, why it ended."""
    remarks = []
    if trial.number in front:
        remarks.append("best" if len(trial.values) == 1 else "front")
    if trial.params and trial.params == dict(configured):
        remarks.append("configured values")
    if earlier := earlier_attempts(trial):
        remarks.append(f"retry of {', '.join(map(str, earlier))}")
    if trial.state == TrialState.PRUNED and trial.last_step is not None:
        remarks.append(f"at look {trial.last_step}")
    if why := reason(trial):
        remarks.append(why)
    return remarks


def _objective_values(trial: FrozenTrial, count: int) -> tuple[float | None, ...]:
    """A trial's objective values without penalty; None for each value that is missing."""
    if trial.state == TrialState.COMPLETE:
        return tuple(results.scores(trial))
    if count == 1 and SCORE in trial.user_attrs:
        return (float(trial.user_attrs[SCORE]),)
    return (None,) * count


def _plot_html(plot: StudyPlot, place: int) -> str:
    """The HTML of an Optuna plot; empty if it has no figure."""
    if plot.figure is None:
        return ""
    html: str = plot.figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{place}",
        default_height=f"{plot.figure.layout.height}px",
        config={"responsive": True, "displayModeBar": False},
    )
    return html


def _format_number(value: float | None) -> str:
    """Format a number with four digits, and None as a dash."""
    return "\N{EN DASH}" if value is None else pages.minus(f"{value:.4g}")
