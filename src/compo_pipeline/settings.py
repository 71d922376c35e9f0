"""Kedro's settings of the project.

The project's own are read by `project/settings.py`.
"""

from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException, OmegaConfigLoader
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from compo_pipeline.core import console, keys, offline
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.project.hooks import ProjectHooks
from compo_pipeline.project.settings import SettingsContext

offline.disable_telemetry()
console.log_plain_lines_off_terminal()

HOOKS = (ProjectHooks(),)
DISABLE_HOOKS_FOR_PLUGINS = ("kedro-telemetry",)


class ConfigLoader(OmegaConfigLoader):
    """Kedro's loader of configuration, with errors of one line that name the file."""

    def __init__(self, conf_source: str, env: str | None = None, *args: Any, **rest: Any) -> None:
        keys.check_environment(Path(conf_source), env or rest.get("default_run_env") or "local")
        super().__init__(conf_source, env, *args, **rest)

    def __getitem__(self, key: str) -> dict[str, Any]:
        """Read one kind of configuration.

        Raises:
            SettingsError: a file cannot be read, two of an environment have one key, or a `${...}`
                names nothing.
        """
        try:
            return super().__getitem__(key)
        except MissingConfigException:
            raise
        except (ValueError, AttributeError, RecursionError, OmegaConfBaseException, YAMLError) as e:
            env = self.env or self.default_run_env
            for folder in ("base", env):
                keys.read(Path(self.conf_source) / folder, key)
            raise SettingsError(f"conf/{env}, {key}: {' '.join(str(e).split())}") from e


CONTEXT_CLASS = SettingsContext
CONFIG_LOADER_CLASS = ConfigLoader
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # Soft: an override replaces one value, not its siblings, in environments and `--params`.
    "merge_strategy": {"parameters": "soft", "catalog": "soft", "globals": "soft"},
}
