"""Kedro's settings of the project; the project's own are read by `project/settings.py`."""

from compo_pipeline.configuration import rehearsal
from compo_pipeline.project.hooks import ProjectHooks, TrackingHook
from compo_pipeline.run import console, offline

offline.disable_telemetry()
console.log_plain_lines_off_terminal()

HOOKS = (ProjectHooks(), TrackingHook())
DISABLE_HOOKS_FOR_PLUGINS = ("kedro-telemetry",)

CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    "custom_resolvers": {"dataset_name": rehearsal.dataset_name},
    # Soft: an override replaces one value, not its siblings, in environments and `--params`.
    "merge_strategy": {"parameters": "soft", "catalog": "soft", "globals": "soft"},
}
