"""One page tells of a study, whatever became of it, and needs nothing but itself."""

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from plotly.offline import get_plotlyjs

from compo_pipeline.core.files import record_json
from compo_pipeline.core.records import Score
from compo_pipeline.evaluation.comparison import compare
from compo_pipeline.evaluation.evaluate import ComparedModel, Comparison
from compo_pipeline.pages.study_page import PAGE, study_page

LR = "training.optimizer.lr"


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float(LR, 1e-4, 1e-2, log=True)
    weight = trial.suggest_float("weight", 0, 1)
    trial.report(weight, 1)
    if trial.number == 3:
        raise optuna.TrialPruned
    return weight - 10 * lr


def written(trials: int, confirmation: dict[str, Any]) -> str:
    database = optuna.create_study(direction="maximize")
    database.optimize(objective, n_trials=trials)
    best = {"trial": 0, "score": 71.25, "values": {LR: 0.004}, "command": "kedro run --best"}
    study = {
        "name": "clic-scenes",
        "configured": {LR: 0.002},
        "trials": {"complete": trials},
        "best": best if trials else None,
    }
    page = study_page(database, study, confirmation, {"command": "kedro run"})
    return str(page.files(PAGE)[PAGE])


def test_the_page_has_the_confirmation_the_best_values_and_five_plots(
    approved: Callable[[str, str], None],
) -> None:
    scores = [
        Score(model, "sugar_crepe", "swap_att", "accuracy", str(k), f"{k}.jpg", (0.2,), k < n, None)
        for model, n in (("base", 10), ("configured", 20), ("tuned", 35))
        for k in range(40)
    ]
    names = ("base", "configured", "tuned")
    pairs = [("configured", "base"), ("tuned", "base"), ("tuned", "configured")]
    rows = compare([scores], {name: name for name in names}, pairs, {})
    models = {name: ComparedModel(name, name) for name in names}
    suite = Comparison(models, tuple(rows))
    html = written(6, {"seeds": [1, 2], "suite": record_json(suite)})
    assert html.count(get_plotlyjs()) == 1
    html = html.replace(get_plotlyjs(), "")
    assert html.count("Plotly.newPlot") == 5
    approved("study", html)
    values = ("25.0", "50.0", "87.5", "+25.0", "+62.5", "+37.5")
    places = [html.index(f">{value}<") for value in values]
    assert places == sorted(places)
    assert "1, 2" in html and "0.004" in html and "kedro run --best" in html


@pytest.mark.parametrize("trials", [0, 1])
def test_a_study_of_few_trials_has_a_page_without_plots(trials: int) -> None:
    html = written(trials, {"reason": "no trial meets every constraint"})
    assert "newPlot" not in html and "No confirmation: no trial meets every constraint" in html
    assert ("best" in html) and ("71.2" in html) == bool(trials)
