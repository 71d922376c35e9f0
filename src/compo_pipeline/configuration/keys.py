"""Files of an environment's configuration, one by one: for errors that name a file.

Kedro merges files and ignores unknown keys. Those of catalog and globals are held against conf/base
here; those of the parameters against the settings classes, by `project.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration.settings import SettingsError, nearest, value_at

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


def check_environment(conf: Path, environment: str) -> None:
    """Refuse an absent environment.

    Raises:
        SettingsError: naming the nearest one.
    """
    folders = sorted(folder.name for folder in conf.iterdir() if folder.is_dir())
    if environment not in folders:
        hint = nearest(environment, folders)
        raise SettingsError(
            f"--env: there is no folder conf/{environment}{hint} (known: {', '.join(folders)})"
        )


def refuse_unknown(conf: Path, environment: str) -> None:
    """Refuse names in an environment's catalog and globals that conf/base does not have.

    Raises:
        SettingsError: naming every unknown key, its file and the nearest known one.
    """
    problems: list[str] = []
    for kind in ("catalog", "globals") if environment != "base" else ():
        own = read(conf / environment, kind)
        base = read(conf / "base", kind).values() if own else ()
        known = {name: value for values in base for name, value in values.items()}
        for path, values in own.items():
            # The content of a catalog entry is checked by its dataset.
            unknown = _unknown_keys(known, values, deep=kind == "globals")
            problems += (f"conf/{path.relative_to(conf)}: {each}" for each in unknown)
    if problems:
        raise SettingsError("\n".join(problems))


def place_of(conf: Path, environment: str, runtime: Mapping[str, Any]) -> Callable[[str], str]:
    """Function that maps a dotted key to the file or option that sets it last, for error messages.

    It is `--params: `, a file as in `conf/coco/parameters.yml: `, or empty for a key that nothing
    sets. The files are read when it is called.
    """

    def place(key: str) -> str:
        if _has_key(runtime, key):
            return "--params: "
        for folder in dict.fromkeys((environment, "base")):
            for path, values in read(conf / folder, "parameters").items():
                if _has_key(values, key):
                    return f"conf/{path.relative_to(conf)}: "
        return ""

    return place


def _unknown_keys(
    known: Mapping[str, Any], given: Mapping[str, Any], *, deep: bool, prefix: str = ""
) -> Iterator[str]:
    """Yield an error message for each unknown key; below the first level only if `deep`."""
    names = [other for other in known if not other.startswith("_")]
    for name, value in given.items():
        if str(name).startswith("_"):
            continue
        if name not in known:
            hint = nearest(str(name), names)
            yield f"{prefix}{name}: unknown key{hint} (known: {', '.join(names)})"
        elif deep and isinstance(value, Mapping) and isinstance(known[name], Mapping):
            yield from _unknown_keys(known[name], value, deep=deep, prefix=f"{prefix}{name}.")


def _has_key(values: Any, key: str) -> bool:
    """Whether nested mappings hold a value at a dotted key."""
    try:
        value_at(values, key)
    except (KeyError, TypeError):
        return False
    return True
