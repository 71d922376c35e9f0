"""Pipeline `copy`: a version is copied to another registry."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.copy.nodes import copy_to_registry, write_copy


def create_pipeline() -> Pipeline:
    """Kedro pipeline that copies a model version to another registry.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            node(
                copy_to_registry,
                inputs=["params:promotion", "params:registration", "params:tracking"],
                outputs="copied_version",
                name="copy_to_registry",
            ),
            node(
                write_copy,
                inputs=[
                    "copied_version",
                    "params:promotion",
                    "params:registration",
                    "params:site",
                ],
                outputs="promotion_report",
                name="write_copy",
            ),
        ]
    )
