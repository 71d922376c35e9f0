"""A Kedro environment with advised settings, beside those that a run had."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf

from compo_pipeline.configuration import keys, variants
from compo_pipeline.configuration.settings import leaves, with_values
from compo_pipeline.storage.files import write_text


def write_environment(
    folder: Path, conf: Path, env: str | None, params: Mapping[str, Any], advice: Mapping[str, Any]
) -> None:
    """Write a Kedro environment: the configuration of a run, overridden by advised settings.

    It has the files of the run's own environment, its named variant, `--params`, and advice.

    Args:
        folder: for the files.
        conf: the project's configuration.
        env: the run's environment; None is conf/base alone.
        params: of the run, nested or by dotted key.
        advice: values by dotted key, which override them.
    """
    folders = [conf / name for name in dict.fromkeys(("base", env)) if name is not None]
    everything = {kind: _merged_files(folders, kind) for kind in ("globals", "parameters")}
    values = {kind: _merged_files(folders[1:], kind) for kind in everything}
    for own in folders[1:]:
        for file in keys.read(own, "catalog"):
            shutil.copyfile(file, folder / file.name)
    given = dict(leaves(params))
    run = {**everything["globals"], **given, variants.KEY: everything["parameters"][variants.KEY]}
    named = dict(leaves(everything["globals"]))
    for key, value in {**variants.values_of(run), **given, **advice}.items():
        kind = "globals" if key in named else "parameters"
        values[kind] = with_values(values[kind], {key: value})
    for kind, content in values.items():
        write_text(folder / f"{kind}.yml", yaml.safe_dump(content, sort_keys=False))


def _merged_files(folders: Sequence[Path], kind: str) -> dict[str, Any]:
    """Merge configuration files of one kind from several folders; later folders override."""
    contents = [each for folder in folders for each in keys.read(folder, kind).values()]
    merged = OmegaConf.to_container(OmegaConf.merge({}, *contents))
    return {str(name): value for name, value in cast(dict[Any, Any], merged).items()}
