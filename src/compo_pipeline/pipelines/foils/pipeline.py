"""Wiring of the pipeline `foils`."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import step
from compo_pipeline.pipelines.foils.nodes import build_foils, write_review_page


def create_pipeline() -> Pipeline:
    """Build benchmark items from the captions of held-out rows."""
    return Pipeline(
        [
            step(
                build_foils,
                ["valid_captions", "facts"],
                ["foils", "foils_report"],
                trains="views.split",
                workers="evaluation.workers",
            ),
            step(write_review_page, ["foils", "foils_report", "foils_review"], "foils_review_page"),
        ],
        namespace="foils",
        prefix_datasets_with_namespace=False,
    )
