"""One page of a study that opens without a network: what it found, its plots and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from compo_pipeline.evaluation.comparison import Difference
from compo_pipeline.presentation import pages
from compo_pipeline.presentation.study_plots import Plot, plots
from compo_pipeline.tuning.confirmation import Confirmed
from compo_pipeline.tuning.constraints import SCORE
from compo_pipeline.tuning.failures import reason
from compo_pipeline.tuning.outcome import (
    RECIPE,
    Run,
    baseline,
    best,
    feasible,
    front,
    measured,
    metric_names,
    snapshot,
    steps,
)
from compo_pipeline.tuning.space import Space, Value
from compo_pipeline.tuning.words import duration, labels, shown

PAGE = "study.html"

# Optuna's name for the numbers of the trials that a trial is a retry of.
_EARLIER = "retry_history"

_STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A trial in the table.

    Attributes:
        number: of the trial.
        state: in words.
        tags: what else is to be said of it: the configured values, a retry, the best.
        why: it failed, or where it was stopped.
        values: of the objectives, as measured; what a trial that was stopped last reported.
        constraints: by name, None where it has none.
        params: by short label.
        seconds: that it took; None where it has not ended.
        feasible: whether it finished and meets every constraint.
    """

    number: int
    state: str
    tags: tuple[str, ...]
    why: str
    values: tuple[float | None, ...]
    constraints: Mapping[str, float | None]
    params: Mapping[str, Value]
    seconds: float | None
    feasible: bool


def write(
    study: Study,
    configured: Mapping[str, Value],
    folder: Path,
    space: Space,
    run: Run | None = None,
    confirmed: Confirmed | None = None,
) -> Path:
    """Write `study.html`; it needs no other file and no network.

    Args:
        study: finished, or as far as it is.
        configured: what the configuration says of the searched keys.
        folder: for the page.
        space: what is searched.
        run: how the best values are to be run.
        confirmed: what the best values are worth on the reported questions.
    """
    environment = pages.environment()
    environment.filters.update(figure=_figure, value=shown, duration=duration, signed=_signed)
    study = snapshot(study)
    drawn = plots(study)
    context = _context(study, configured, space, run or Run())
    context["confirmed"] = confirmed
    context["plots"] = [(plot, _html(plot, place)) for place, plot in enumerate(drawn)]
    context["library"] = _library() if any(plot.figure for plot in drawn) else ""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(environment.get_template(PAGE).render(context), encoding="utf-8")
    return folder / PAGE


def _context(
    study: Study, configured: Mapping[str, Value], space: Space, run: Run
) -> dict[str, Any]:
    trials = study.get_trials()
    chosen, plain = best(study), baseline(study, configured)
    rows = lines(study, configured)
    return {
        "name": study.study_name,
        "metrics": metric_names(study),
        "trials": rows,
        "tally": _tally(trials),
        "steps": sum(map(steps, trials)),
        "seconds": sum(row.seconds or 0.0 for row in rows),
        "feasible": len(feasible(study)),
        "constraints": list(rows[0].constraints) if rows else [],
        "labels": labels(name for trial in trials for name in trial.params),
        "chosen": chosen,
        "best": rows[chosen.number] if chosen is not None else None,
        "plain": rows[plain.number] if plain is not None else None,
        "front": front(study) if len(study.directions) > 1 else [],
        "configured": configured,
        "domains": {one.name: one.described for one in space.parameters},
        "command": run.command(chosen.params) if chosen is not None else "",
        "recipe": RECIPE,
    }


def lines(study: Study, configured: Mapping[str, Value]) -> list[Line]:
    """A line for each trial, in the order they were begun."""
    trials = study.get_trials()
    short = labels(name for trial in trials for name in trial.params)
    names = list(dict.fromkeys(name for trial in trials for name in trial.constraints))
    well = {trial.number for trial in feasible(study)}
    top = {trial.number for trial in front(study)}
    return [
        Line(
            number=trial.number,
            state=_STATES[trial.state],
            tags=tuple(_tags(trial, configured, top)),
            why=_why(trial),
            values=_measured(trial, len(study.directions)),
            constraints={name: trial.constraints.get(name) for name in names},
            params={short[name]: value for name, value in trial.params.items()},
            seconds=trial.duration.total_seconds() if trial.duration else None,
            feasible=trial.number in well,
        )
        for trial in trials
    ]


def _tags(trial: FrozenTrial, configured: Mapping[str, Value], top: set[int]) -> list[str]:
    tags = []
    if trial.number in top:
        tags.append("best" if len(trial.values) == 1 else "front")
    if trial.params and trial.params == dict(configured):
        tags.append("configured values")
    if earlier := trial.system_attrs.get(_EARLIER):
        tags.append(f"again after {', '.join(map(str, earlier))}")
    return tags


def _why(trial: FrozenTrial) -> str:
    if trial.state == TrialState.PRUNED:
        return f"at look {trial.last_step}" if trial.last_step is not None else ""
    return reason(trial) or ""


def _measured(trial: FrozenTrial, count: int) -> tuple[float | None, ...]:
    """Values without penalty; of a trial that was stopped, the score it last had."""
    if trial.state == TrialState.COMPLETE:
        return tuple(measured(trial))
    if count == 1 and SCORE in trial.user_attrs:
        return (float(trial.user_attrs[SCORE]),)
    return (None,) * count


def _tally(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """Trials by state, in words; states that no trial is in are left out."""
    counts = dict.fromkeys(_STATES.values(), 0)
    for trial in trials:
        counts[_STATES[trial.state]] += 1
    return {words: count for words, count in counts.items() if count}


def _html(plot: Plot, place: int) -> str:
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


def _library() -> str:
    """plotly.js, once for all plots of the page."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def _figure(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def _signed(difference: Difference) -> str:
    return difference.format().replace("-", "\N{MINUS SIGN}")
