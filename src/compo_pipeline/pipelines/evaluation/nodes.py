"""Score the models of a run, and report what they scored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.records import Caption, Fact, Rejected, Score

if TYPE_CHECKING:
    import pandas as pd


def score_models(
    valid_captions: list[Caption],
    facts: list[Fact],
    checkpoint: Path,
    control_checkpoint: Path,
    run: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    model: Mapping[str, Any],
    method: str,
    dataset: str,
    data_root: str,
) -> tuple[list[Score], dict[str, Any], dict[str, Any]]:
    """Scores of every item, figures by model for DVC, and the comparison of the models."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.evaluation import benchmarks as adapters
    from compo_pipeline.evaluation.comparison import CONTROL, FINE_TUNED, by_role
    from compo_pipeline.evaluation.contamination import trained
    from compo_pipeline.evaluation.evaluate import evaluate, loaders
    from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
    from compo_pipeline.models.loading import ModelSettings
    from compo_pipeline.registry import figures, kept_scores, tracking

    settings = parse(EvaluationSettings, evaluation, "evaluation")
    wanted = parse(BenchmarksSettings, benchmarks, "benchmarks")
    root = Path(data_root)
    subtasks = adapters.gather(wanted, valid_captions, root)
    control = control_checkpoint if settings.control else None
    models = loaders(parse(ModelSettings, model, "model"), control, checkpoint, settings.device)
    known = trained(valid_captions, facts, root, settings)
    scores, comparison = evaluate(subtasks, models, method, dataset, known, settings)
    metrics = by_role(comparison.rows)
    with tracking.adopt(run["run_id"]) as record:
        record.metrics(figures.metrics(comparison.rows, FINE_TUNED))
        if CONTROL in comparison.models:
            with tracking.adopt(tracking.inner_run(record.run_id, CONTROL)) as beside:
                beside.metrics(figures.metrics(comparison.rows, CONTROL))
        record.document(comparison.to_json(), "comparison.json")
        asked = (subtasks, wanted.root, settings)
        kept_scores.keep_evaluation(record, scores, comparison, *asked)
    return scores, metrics, comparison.to_json()


def write_report(
    comparison: Mapping[str, Any],
    scores: list[Score],
    quarantine: list[Rejected],
    training_curves: pd.DataFrame,
    run: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    folder: str,
) -> Path:
    """The page with figures and items, and the table on the terminal."""
    from compo_pipeline.configuration import parse
    from compo_pipeline.evaluation import benchmarks as adapters
    from compo_pipeline.evaluation import report, terminal
    from compo_pipeline.evaluation.evaluate import Comparison
    from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
    from compo_pipeline.registry import tracking

    found = Comparison.from_json(comparison)
    material = report.Material(
        comparison=found,
        scores=scores,
        subtasks=adapters.from_files(parse(BenchmarksSettings, benchmarks, "benchmarks")),
        quarantine=quarantine,
        curves=training_curves,
        run=run,
        gallery=parse(EvaluationSettings, evaluation, "evaluation").gallery,
    )
    written = report.write(material, Path(folder))
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(written, "report")
    terminal.show(found)
    return written
