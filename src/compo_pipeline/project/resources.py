"""Inputs, data, models and folders that a pipeline needs, checked before it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration.settings import PlainError, SettingsError
from compo_pipeline.project.problems import Run, problems
from compo_pipeline.project.settings import PARAMS

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from compo_pipeline.project.settings import RunSettings


def check_resources(
    parameters: RunSettings, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]
) -> None:
    """Raise an error if data, models or folders of a pipeline are missing; download weights.

    Args:
        parameters: the project's.
        pipeline: the one that is about to run.
        catalog: Kedro's.

    Raises:
        SettingsError: something is missing or cannot be used; one line each.
    """
    if found := dict.fromkeys(problems(Run(parameters, pipeline, catalog))):
        raise SettingsError("\n".join(found))


class MissingInput(PlainError, FileNotFoundError):
    """Error: an input of the pipeline does not exist yet."""


def check_inputs(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
    """Raise an error if a catalog entry that the pipeline reads does not exist.

    Args:
        pipeline: the one that is about to run.
        catalog: Kedro's.

    Raises:
        MissingInput: naming the catalog entries, their paths, and the pipelines that write them.
    """
    from kedro.io import AbstractDataset

    missing = []
    for entry in sorted(name for name in pipeline.inputs() if not name.startswith(PARAMS)):
        dataset: Any = catalog[entry]
        # Kedro reports datasets without a check of their own as missing.
        can_check = type(dataset)._exists is not AbstractDataset._exists
        if not can_check or catalog.exists(entry):
            continue
        described: Mapping[str, Any] = dataset._describe()
        path = described.get("filepath")  # absolute
        place = os.path.relpath(path) if path else str(dict(described))
        writer = writer_of(entry)
        by = f"written by `kedro run --pipeline={writer}`" if writer else "written by no pipeline"
        missing.append(f"  {entry}: {place}, {by}")
    if missing:
        raise MissingInput(
            "missing inputs:\n" + "\n".join(missing) + "\nRun these (`--pipeline=train_eval` runs "
            "all of a training) with the same --env and --params: dataset, method, variant, seed "
            "and models name the folders"
        )


def writer_of(entry: str) -> str | None:
    """Name of the pipeline that writes a catalog entry; None if none does."""
    from kedro.framework.project import pipelines

    # Those of the whole chain are registered first, in its order.
    return next((name for name in pipelines if entry in pipelines[name].all_outputs()), None)
