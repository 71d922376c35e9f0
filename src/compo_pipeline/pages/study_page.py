"""The page of a study: confirmation, best values and Optuna's plots.

It opens offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
from optuna import Study, visualization
from optuna.trial import TrialState

from compo_pipeline.core.settings import parse
from compo_pipeline.evaluation.comparison import BASE
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.pages.pages import Page, Plot, Section, Table, Text
from compo_pipeline.pages.tables import metrics_table

PAGE, CONFIRMATION = "study.html", "Confirmation on the reported items"
_PLOTS: dict[str, Callable[[Study], go.Figure]] = {
    "History": visualization.plot_optimization_history,
    "Parameter importance": visualization.plot_param_importances,
    "Slices": visualization.plot_slice,
    "Parallel coordinates": visualization.plot_parallel_coordinate,
    "Values during training": visualization.plot_intermediate_values,
}


def study_page(
    database: Study,
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    facts: Mapping[str, str],
) -> Page:
    """The page of an Optuna study.

    Args:
        database: the study, with its trials.
        study: result of the study: name, configured and best values.
        confirmation: comparison of the best values on the reported items, or why there is none.
        facts: about the run, label to text.
    """
    best, trials = study["best"], study["trials"]
    sections: list[Section] = [_confirmation(confirmation)]
    found = "There is no best trial: none that finished meets every constraint."
    if best:
        found = (
            f"Trial {best['trial']} is the best: score {best['score']:.1f}. It was chosen by the "
            "items that scored it, so its score is biased upwards."
        )
        values = ((key, study["configured"][key], tuned) for key, tuned in best["values"].items())
        sections += [
            Table.of(
                values, "setting | configured | tuned", "{0} | {1} | {2}", title="Best values"
            ),
            Text("Also in `best_params.yml`. To train and evaluate them:", best["command"]),
        ]
    states = ", ".join(f"{count} {state}" for state, count in trials.items())
    note = (
        "Values are scores less a point for each point by which a constraint is violated. All "
        "trials: `trials.csv` beside this page, or `optuna-dashboard` with the study's database."
    )
    return Page(
        study["name"],
        "Tuning of a compositional fine-tuning method",
        [*sections, *_figures(database), Text(note=note)],
        [f"{sum(trials.values())} trials: {states}. {found}"],
        facts,
    )


def _confirmation(confirmation: Mapping[str, Any]) -> Section:
    """Base, configured and tuned recipe on the reported items, or why they were not compared."""
    if "suite" not in confirmation:
        return Text(f"No confirmation: {confirmation['reason']}.", title=CONFIRMATION)
    suite = parse(Comparison, confirmation["suite"], "confirmation")
    seeds = ", ".join(map(str, confirmation["seeds"]))
    return metrics_table(
        suite.headlines,
        {name: name for name in suite.models},
        {
            pair: " - ".join(pair)
            for pair in (("configured", BASE), ("tuned", BASE), ("tuned", "configured"))
        },
        title=CONFIRMATION,
        note="Configured and tuned recipe, trained in full with seeds that no trial had "
        f"({seeds}), on items that scored no trial. Per cent; 95% intervals over seeds and images; "
        "differences are paired on the same items.",
    )


def _figures(database: Study) -> Iterator[Plot]:
    """Yield Optuna's figures.

    The first one has plotly.js with it, for all.
    """
    finished = database.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len({trial.value for trial in finished}) < 2:
        return  # of equal values, no parameter is important
    for title, plot in _PLOTS.items():
        first = plot is visualization.plot_optimization_history
        html = plot(database).to_html(full_html=False, include_plotlyjs=first)
        yield Plot(title, html=html, title=title)
