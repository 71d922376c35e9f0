"""Kedro hook of MLflow tracking: sets store and experiment, and marks failed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl

from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.registry.settings import TrackingSettings

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.pipeline import Pipeline

# Catalog entries that hold an MLflow run's id: of a training, of a study.
ENTRIES = frozenset({"run", "study"})
# Pages that are logged as a run of their own.
PAGES = frozenset({"suite_report", "comparison_report"})


class TrackingHook:
    """Configures MLflow before a pipeline that has a run; marks the run of a failing pipeline."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._run_id: str | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Store the context, for the settings and the project's folder."""
        self._context = context

    @hook_impl(trylast=True)
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Configure MLflow if the pipeline logs into a run; importing it takes seconds, so the
        checks of settings and inputs come first.
        """
        self._run_id = None
        if self._context is not None and (ENTRIES | PAGES) & pipeline.datasets():
            from compo_pipeline.registry import tracking

            settings = parse(TrackingSettings, self._context.params["tracking"], "tracking")
            tracking.configure(settings, self._context.project_path)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        """Store the id of the run that this pipeline logs into."""
        self._store_run_id(dataset_name, data)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Store the id of the run that this pipeline has opened."""
        self._store_run_id(dataset_name, data)

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Mark the run as failed, even if an earlier stage had finished it.

        An error in a later command's settings does not concern the run.
        """
        if self._run_id is not None and not isinstance(error, SettingsError):
            from compo_pipeline.registry import tracking

            tracking.mark_failed(self._run_id, error)

    def _store_run_id(self, dataset_name: str, data: Any) -> None:
        if dataset_name in ENTRIES:
            self._run_id = data["run_id"]
