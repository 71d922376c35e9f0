"""Wiring of the pipeline `foils`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.foils.nodes import (
    build_foils,
    hash_official_images,
    write_review_page,
)


def create_pipeline() -> Pipeline:
    """Kedro pipeline that builds foil items from valid captions of held-out rows."""
    return Pipeline(
        [
            node(
                hash_official_images,
                inputs=[
                    "facts",
                    "params:foils",
                    "params:benchmarks",
                    "params:evaluation.workers",
                ],
                outputs="official_images",
                name="hash_official_images",
            ),
            node(
                build_foils,
                inputs=[
                    "valid_captions",
                    "facts",
                    "official_images",
                    "params:foils",
                    "params:views.split",
                    "params:language.model",
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
