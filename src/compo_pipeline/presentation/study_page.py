"""The page of a study: confirmation, best values and Optuna's plots; it opens offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from optuna import Study, visualization
from optuna.trial import TrialState
from plotly.offline import get_plotlyjs

from compo_pipeline.configuration.settings import parse
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.presentation import pages

_PAGE = "study.html"
_PLOTS: dict[str, Callable[[Study], go.Figure]] = {
    "History": visualization.plot_optimization_history,
    "Parameter importance": visualization.plot_param_importances,
    "Slices": visualization.plot_slice,
    "Parallel coordinates": visualization.plot_parallel_coordinate,
    "Values during training": visualization.plot_intermediate_values,
}


def write(
    database: Study,
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    facts: Mapping[str, str],
    folder: Path,
) -> Path:
    """Write `study.html`, the page of an Optuna study, as one self-contained file.

    Args:
        database: the study, with its trials.
        study: its result: name, configured and best values.
        confirmation: comparison of the best values on the reported items, or why there is none.
        facts: about the run, label to text.
        folder: for the page.
    """
    finished = database.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    # Of equal values, no parameter is important.
    drawn = _PLOTS if len({trial.value for trial in finished}) > 1 else {}
    suite = confirmation.get("suite")
    context = {
        "title": study["name"],
        "facts": facts,
        "study": study,
        "confirmation": confirmation,
        "rows": parse(Comparison, suite, "confirmation").headlines if suite else [],
        "plots": {
            title: plot(database).to_html(full_html=False, include_plotlyjs=False)
            for title, plot in drawn.items()
        },
        # plotly.js, once for all plots of the page.
        "library": f"<script>{get_plotlyjs()}</script>" if drawn else "",
    }
    return pages.write(folder / _PAGE, _PAGE, context)
