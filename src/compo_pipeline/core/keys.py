"""Read each configuration file of a Kedro environment, so that an error names the file.

Kedro merges files and ignores unknown keys. Those of globals are held against conf/base here; those
of the parameters against the settings classes, by `project.settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.core.settings import SettingsError, leaves, nearest

COMPUTE = "parameters_compute.yml"
"""File of settings that change how fast a run is, and nothing else; DVC does not read it."""
_SUFFIXES = (".yml", ".yaml", ".json")


def read(folder: Path, kind: str) -> dict[Path, dict[str, Any]]:
    """Unresolved content of an environment's files of one kind (such as catalog), by path.

    Raises:
        SettingsError: a file cannot be used.
    """
    return {
        path: content_of(path)
        for path in sorted(folder.rglob("*"))
        # Its name begins with the kind, or that of a folder above it.
        if path.suffix in _SUFFIXES
        and any(part.startswith(kind) for part in path.relative_to(folder).parts)
    }


def content_of(path: Path) -> dict[str, Any]:
    """Unresolved content of a configuration file, as nested mappings.

    Raises:
        SettingsError: it is no YAML of a mapping, gives a key twice, or has a `${...}` that cannot
            be read.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.create(path.read_text(encoding="utf-8"))
        if not isinstance(content, DictConfig):
            raise ValueError("expected keys with values, got a list")
    except (yaml.YAMLError, ValueError, RecursionError, OmegaConfBaseException) as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
    return OmegaConf.to_container(content)  # type: ignore[return-value]


def check_environment(conf: Path, environment: str, key: str = "--env") -> None:
    """Refuse an absent environment.

    Raises:
        SettingsError: naming the option or key that names it, and the nearest one.
    """
    folders = sorted(folder.name for folder in conf.iterdir() if folder.is_dir())
    if environment not in folders:
        hint = nearest(environment, folders)
        raise SettingsError(
            f"{key}: there is no folder conf/{environment}{hint} (known: {', '.join(folders)})"
        )


def refuse_unknown(conf: Path, environment: str) -> None:
    """Refuse keys in an environment's globals that conf/base does not have: Kedro ignores them.

    Raises:
        SettingsError: naming every unknown key, its file and the nearest known one.
    """
    base = read(conf / "base", "globals").values()
    known = [key for values in base for key, _ in leaves(values)]
    problems = [
        f"conf/{path.relative_to(conf)}: {key}: unknown key{nearest(key, known)} "
        f"(known: {', '.join(known)})"
        for path, values in read(conf / environment, "globals").items()
        for key, _ in leaves(values)
        if key not in known and not key.startswith("_")
    ]
    if problems:
        raise SettingsError("\n".join(problems))
