"""Experiments of the tests' MLflow store, and what an evaluation found."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compo_pipeline.evaluation.audit import Audit
from compo_pipeline.evaluation.comparison import compare
from compo_pipeline.evaluation.contamination import Overlap
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import Bootstrap
from compo_pipeline.records import Score
from compo_pipeline.registry import tracking


@pytest.fixture
def configure(mlflow_project: Path) -> Callable[[str], None]:
    """Switch to an experiment of the store."""

    def switch(experiment: str) -> None:
        settings = tracking.TrackingSettings(experiment=experiment)
        tracking.configure(settings, mlflow_project)

    return switch


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """A method that gains in retrieval image to text and loses text to image."""
    right = {("base", "i2t_r1"): 20, ("clic", "i2t_r1"): 38}
    right |= {("base", "t2i_r1"): 38, ("clic", "t2i_r1"): 20}
    scores = [
        Score(model, "retrieval", "raw", metric, str(item), f"{item}.png", (), item < count, None)
        for (model, metric), count in right.items()
        for item in range(40)
    ]
    models = {"base": "base", "fine_tuned": "clic"}
    keys = ("retrieval", "i2t_r1", "raw"), ("retrieval", "t2i_r1", "raw")
    rows = compare([scores], models, Bootstrap(resamples=100), {keys[0]: 0.1, keys[1]: 0.45})
    return Comparison(
        dataset="toy",
        models=models,
        weights=models,
        verdict=(),
        resamples=100,
        rows=tuple(rows),
        audits=(Audit("retrieval", "raw", 40, 2, {"missing": 2}, 80, 0, 0, ()),),
        overlaps=(Overlap("retrieval", "raw", 40, 1, 0, None, 40, 3),),
    )
