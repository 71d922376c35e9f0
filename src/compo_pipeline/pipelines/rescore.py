"""Pipeline `rescore`: a version is registered again with evidence computed anew from its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kedro.pipeline import Pipeline, node

from compo_pipeline.configuration import parse
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.records import Caption, Fact
from compo_pipeline.registry.settings import RegistrationSettings, TrackingSettings


def rescore_version(
    valid_captions: Sequence[Caption],
    facts: Sequence[Fact],
    manifest: Mapping[str, Any],
    registration: Mapping[str, Any],
    tracking: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    model: Mapping[str, Any],
    data_root: str,
) -> dict[str, Any]:
    """Score the version with the registration's alias and its base, and register it again."""
    from compo_pipeline.evaluation.benchmarks.loading import gather
    from compo_pipeline.evaluation.contamination import training_rows
    from compo_pipeline.registry import tracking as store
    from compo_pipeline.registry.rescoring import rescore
    from compo_pipeline.registry.version_scores import VersionScores

    settings = parse(RegistrationSettings, registration, "registration")
    scoring = parse(EvaluationSettings, evaluation, "evaluation")
    root = Path(data_root)
    store.configure(parse(TrackingSettings, tracking, "tracking"), Path.cwd())
    scorer = VersionScores(
        subtasks=gather(parse(BenchmarksSettings, benchmarks, "benchmarks"), valid_captions, root),
        evaluation=scoring,
        base=parse(ModelSettings, model, "model"),
        reevaluate=False,
        signing=settings.signing,
    )
    known = training_rows(valid_captions, facts, root, scoring)
    return asdict(rescore(scorer, known, manifest["data_hash"], settings))


def create_pipeline() -> Pipeline:
    """The rescore pipeline."""
    return Pipeline(
        [
            node(
                rescore_version,
                inputs=[
                    "valid_captions",
                    "facts",
                    "manifest",
                    "params:registration",
                    "params:tracking",
                    "params:evaluation",
                    "params:benchmarks",
                    "params:model",
                    "params:data.root",
                ],
                outputs="rescored",
                name="rescore_version",
            )
        ]
    )
