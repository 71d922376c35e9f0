"""Wiring of the pipeline `foils`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.foils.nodes import build_foils, write_review_page


def create_pipeline() -> Pipeline:
    """Build benchmark items from the captions of held-out rows."""
    return Pipeline(
        [
            node(
                build_foils,
                inputs=[
                    "valid_captions",
                    "facts",
                    "params:foils",
                    "params:benchmarks",
                    "params:views.split",
                    "params:language.model",
                    "params:evaluation.workers",
                ],
                outputs=["foils", "foils_report"],
                name="build_foils",
            ),
            node(
                write_review_page,
                inputs=[
                    "foils",
                    "foils_report",
                    "foils_review",
                    "params:benchmarks",
                    "params:data.root",
                ],
                outputs="foils_review_page",
                name="write_review_page",
            ),
        ],
        namespace="foils",
        prefix_datasets_with_namespace=False,
    )
