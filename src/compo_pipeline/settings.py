"""Kedro's settings of the project; parsing of the project's own lives in `configuration.py`."""

from compo_pipeline import console, offline
from compo_pipeline.hooks import ProjectHooks, TrackingHook

offline.disable_telemetry()
console.log_lines_off_terminals()

HOOKS = (ProjectHooks(), TrackingHook())
DISABLE_HOOKS_FOR_PLUGINS = ("kedro-telemetry",)

CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # Soft: an override replaces one value, not its siblings, in environments and `--params`.
    "merge_strategy": {"parameters": "soft", "catalog": "soft", "globals": "soft"},
}
