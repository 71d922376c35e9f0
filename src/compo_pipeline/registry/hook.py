"""The Kedro hook of the record: store and experiment are set before a run that writes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.registry import tracking

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.pipeline import Pipeline

# The catalog entries that carry a run's id from stage to stage: of a training, of a study.
ENTRIES = frozenset({"run", "study"})


class TrackingHook:
    """Sets MLflow's store and experiment, and marks the run of a failing pipeline as failed."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._run_id: str | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Keep the context: it knows the settings and the project's folder."""
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Configure MLflow where the pipeline has to do with a run; importing it takes seconds."""
        self._run_id = None
        if self._context is not None and ENTRIES & pipeline.datasets():
            values = self._context.params["tracking"]
            settings = parse(tracking.TrackingSettings, values, "tracking")
            tracking.configure(settings, self._context.project_path)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        """Remember which run this pipeline logs into."""
        self._remember(dataset_name, data)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Remember which run this pipeline has opened."""
        self._remember(dataset_name, data)

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """A run that an earlier stage closed as finished is not finished after all.

        A mistake in the settings of a later command says nothing about it.
        """
        if self._run_id is not None and not isinstance(error, SettingsError):
            tracking.mark_failed(self._run_id, error)

    def _remember(self, dataset_name: str, data: Any) -> None:
        if dataset_name in ENTRIES:
            self._run_id = data["run_id"]
