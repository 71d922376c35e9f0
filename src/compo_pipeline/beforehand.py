"""What can be known to be wrong before a pipeline runs: settings, and entries that are not there.

Every node parses its own settings; here those of all nodes are parsed once before the first one
starts, so that no mistake waits behind hours of work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from click import ClickException

from compo_pipeline.configuration import parse
from compo_pipeline.methods.registry import METHOD_SETTINGS, build

if TYPE_CHECKING:
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

_PARAMS = "params:"
# By YAML key: where the settings that nodes parse from it are defined.
SETTINGS = {
    "attention": "analysis.questions.AttentionSettings",
    "benchmarks": "evaluation.settings.BenchmarksSettings",
    "counterfactuals": "counterfactuals.settings.CounterfactualSettings",
    "data": "datasets.settings.DataSettings",
    "evaluation": "evaluation.settings.EvaluationSettings",
    "export": "models.formats.ExportSettings",
    "ingest": "quality.settings.IngestSettings",
    "language.training": "artefacts.tagger.TrainingSettings",
    "model": "models.settings.ModelSettings",
    "pretraining": "artefacts.settings.PretrainingSettings",
    "promotion": "registry.settings.PromotionSettings",
    "registration": "registry.settings.RegistrationSettings",
    "scenes": "scenes.dataset.SceneSettings",
    "tracking": "registry.settings.TrackingSettings",
    "training": "training.settings.TrainingSettings",
    "tuning": "tuning.search.TuningSettings",
    "validation": "quality.settings.ValidationSettings",
    "views": "methods.view_tables.ViewSettings",
    "wise_ft": "analysis.wise_ft.WiseFtSettings",
}


# Settings that say where and how precisely to compute: their keys of precisions.
_PRECISIONS = {
    "evaluation": ("image_precision", "text_precision"),
    "pretraining": ("precision",),
    "training": ("precision",),
}


class NotThere(ClickException, FileNotFoundError):
    """What a pipeline reads has not been made."""


def check_settings(parameters: Mapping[str, Any], pipeline: Pipeline) -> None:
    """Parse all settings that the nodes of a pipeline will ask for.

    Args:
        parameters: the project's.
        pipeline: what is about to run.

    Raises:
        SettingsError: a value cannot be used; names its YAML key.
    """
    asked = {name.removeprefix(_PARAMS) for name in pipeline.inputs() if name.startswith(_PARAMS)}
    for key in sorted(asked & SETTINGS.keys()):
        module, _, name = SETTINGS[key].rpartition(".")
        settings = getattr(import_module(f"{__package__}.{module}"), name)
        parsed = parse(settings, _at(parameters, key), key)
        if key in _PRECISIONS:
            _check_compute(parsed, key)
    if {METHOD_SETTINGS, f"{METHOD_SETTINGS}.views"} & asked:
        own = parameters[METHOD_SETTINGS]
        build(parameters["method"], own["views"], own["objective"])


def _check_compute(settings: Any, key: str) -> None:
    """Resolve device and precision, report them, and give this process its threads."""
    from compo_pipeline import compute

    compute.use_cores()
    hints = get_type_hints(type(settings))
    found = {
        compute.resolve(
            settings.device,
            getattr(settings, name),
            key=key,
            precision_key=name,
            among=get_args(hints[name]),
        )
        for name in _PRECISIONS[key]
    }
    for each in sorted(found, key=str):
        compute.report(key, each)


def check_inputs(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
    """Look for everything that a pipeline reads and does not make itself.

    Args:
        pipeline: what is about to run.
        catalog: Kedro's.

    Raises:
        NotThere: naming the catalog entries, where they should lie and which pipeline makes them.
    """
    read = sorted(entry for entry in pipeline.inputs() if not entry.startswith(_PARAMS))
    missing = [
        f"  {entry}: {_place(catalog[entry])}, {_maker(entry)}"
        for entry in read
        if _can_tell(catalog[entry]) and not catalog.exists(entry)
    ]
    if missing:
        raise NotThere(
            "not made yet:\n" + "\n".join(missing) + "\nRun `kedro run --pipeline=train_eval`, or "
            "the pipelines named, with the same --env and --params: dataset, method, variant and "
            "seed name the folders"
        )


def _can_tell(dataset: Any) -> bool:
    """Whether a dataset knows if it is there; Kedro takes the others for absent."""
    from kedro.io import AbstractDataset

    return type(dataset)._exists is not AbstractDataset._exists


def _place(dataset: Any) -> str:
    """Where an entry should lie, as its dataset tells it."""
    told: Mapping[str, Any] = dataset._describe()
    # Kedro makes paths of the configuration absolute.
    return os.path.relpath(told["filepath"]) if "filepath" in told else str(dict(told))


def _maker(entry: str) -> str:
    from kedro.framework.project import pipelines

    # Those that are sums of others come last.
    makers = (name for name, pipeline in pipelines.items() if entry in pipeline.all_outputs())
    name = next(makers, None)
    return f"made by the pipeline {name}" if name else "which no pipeline makes"


def _at(parameters: Mapping[str, Any], key: str) -> Any:
    value: Any = parameters
    for part in key.split("."):
        value = value[part]
    return value
