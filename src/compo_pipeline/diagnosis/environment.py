"""A Kedro environment with advised settings, beside those that a run had."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration import keys
from compo_pipeline.configuration.settings import leaves, with_values
from compo_pipeline.storage.files import write_text

_GLOBALS, _PARAMETERS = "globals.yml", "parameters.yml"


def write_environment(
    folder: Path, conf: Path, env: str | None, params: Mapping[str, Any], advice: Mapping[str, Any]
) -> None:
    """Write the files of an environment: those of the run's own, its `--params`, and advice.

    Args:
        folder: for the files.
        conf: the project's configuration.
        env: the run's environment; None is conf/base alone.
        params: of the run, nested or by dotted key.
        advice: values by dotted key, which override both.
    """
    named = {name for read in keys.read(conf / "base", "globals").values() for name in read}
    values: dict[str, dict[str, Any]] = {"globals": {}, "parameters": {}}
    if env is not None:
        for kind in values:
            for content in keys.read(conf / env, kind).values():
                values[kind] = with_values(values[kind], dict(leaves(content)))
        for file in keys.read(conf / env, "catalog"):
            shutil.copyfile(file, folder / file.name)
    for key, value in {**dict(leaves(params)), **advice}.items():
        kind = "globals" if key.partition(".")[0] in named else "parameters"
        values[kind] = with_values(values[kind], {key: value})
    for kind, name in (("globals", _GLOBALS), ("parameters", _PARAMETERS)):
        write_text(folder / name, yaml.safe_dump(values[kind], sort_keys=False))
