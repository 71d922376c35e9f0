"""Scores and comparison of a base and a fine-tuned model, as a run makes them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.records import Score
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import FINE_TUNED
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import Comparison, compare_run, score_models
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices
from compo_pipeline.models.loading import LoadedModel


def evaluate(
    subtasks: Sequence[Subtask],
    models: Mapping[str, Callable[[], LoadedModel]],
    fine_tuned: str,
    label: str,
    dataset: str,
    known: TrainingRows,
    settings: EvaluationSettings,
    slices: ItemSlices = MappingProxyType({}),
) -> tuple[Table[Score], Comparison]:
    scored = score_models(subtasks, models, settings, named={FINE_TUNED: (fine_tuned, label)})
    about = slices, known, dataset, settings, BenchmarksSettings()
    return scored.rows, compare_run(scored, subtasks, *about)
