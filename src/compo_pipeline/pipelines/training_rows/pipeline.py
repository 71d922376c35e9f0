"""Part of `evaluation` and `rescore`: slices of the items, and which are training rows."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.training_rows.nodes import identify_training_rows, slice_items


def create_pipeline() -> Pipeline:
    """Kedro pipeline part that slices benchmark items and hashes training rows, in memory."""
    return Pipeline(
        [
            node(
                slice_items,
                inputs=[
                    "benchmark_items",
                    "valid_captions",
                    "params:evaluation",
                    "params:language.model",
                    "params:views.split",
                ],
                outputs="sliced_items",
                name="slice_items",
            ),
            node(
                identify_training_rows,
                inputs=[
                    "valid_captions",
                    "facts",
                    "params:data.root",
                    "params:evaluation",
                    "params:views.split",
                ],
                outputs="training_rows",
                name="identify_training_rows",
            ),
        ],
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
