"""Pipeline `repair`: aliases that name versions which do not exist are repaired."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from compo_pipeline.pipelines.repair.nodes import repair_aliases, write_repair


def create_pipeline() -> Pipeline:
    """Kedro pipeline that repairs registry aliases of deleted versions.

    Its input is the registry, not the catalog.
    """
    return Pipeline(
        [
            node(
                repair_aliases,
                inputs=["params:promotion", "params:registration", "params:tracking"],
                outputs="repaired_aliases",
                name="repair_aliases",
            ),
            node(
                write_repair,
                inputs=[
                    "repaired_aliases",
                    "params:promotion",
                    "params:registration",
                    "params:site",
                ],
                outputs="promotion_report",
                name="write_repair",
            ),
        ]
    )
