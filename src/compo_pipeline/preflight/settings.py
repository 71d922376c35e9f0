"""Settings classes by YAML key, and the check of all settings before the first node of a run.

Each node parses its own settings; here those of all nodes are parsed once before the first one
starts, so that no mistake appears after hours of work.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from compo_pipeline.configuration import SettingsError, parse, value_at
from compo_pipeline.methods.registry import METHOD_SETTINGS, METHODS, build, find

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline

PARAMS = "params:"
# Settings classes of nodes, by YAML key.
SETTINGS = {
    "attention": "compo_pipeline.analysis.settings:AttentionSettings",
    "benchmarks": "compo_pipeline.evaluation.settings:BenchmarksSettings",
    "counterfactuals": "compo_pipeline.counterfactuals.settings:CounterfactualSettings",
    "data": "compo_pipeline.datasets.settings:DataSettings",
    "evaluation": "compo_pipeline.evaluation.settings:EvaluationSettings",
    "export": "compo_pipeline.models.settings:ExportSettings",
    "ingest": "compo_pipeline.quality.settings:IngestSettings",
    "language.training": "compo_pipeline.artefacts.settings:LanguageModelSettings",
    "model": "compo_pipeline.models.settings:ModelSettings",
    "prepare": "compo_pipeline.engines:PrepareSettings",
    "pretraining": "compo_pipeline.artefacts.settings:PretrainingSettings",
    "promotion": "compo_pipeline.registry.settings:PromotionSettings",
    "registration": "compo_pipeline.registry.settings:RegistrationSettings",
    "scenes": "compo_pipeline.scenes.dataset:SceneSettings",
    "suite": "compo_pipeline.evaluation.settings:SuiteSettings",
    "tracking": "compo_pipeline.registry.settings:TrackingSettings",
    "training": "compo_pipeline.training.settings:TrainingSettings",
    "tuning": "compo_pipeline.tuning.settings:TuningSettings",
    "validation": "compo_pipeline.quality.settings:DataValidationSettings",
    "views": "compo_pipeline.methods.views:ViewSettings",
    "wise_ft": "compo_pipeline.analysis.settings:SweepSettings",
}
# Of caption editors and image generators; the node that uses one parses its settings.
_OF_COUNTERFACTUALS = {
    "counterfactuals.rules": "compo_pipeline.counterfactuals.settings:RulesSettings",
    "counterfactuals.endpoint": "compo_pipeline.counterfactuals.settings:EndpointSettings",
    "counterfactuals.transformers": "compo_pipeline.counterfactuals.settings:TransformersSettings",
    "counterfactuals.scenes": "compo_pipeline.scenes.counterfactuals:SceneEditSettings",
    "counterfactuals.diffusion": "compo_pipeline.counterfactuals.settings:DiffusionSettings",
}
# Settings that name a caption editor or an image generator.
CHOICES = ("caption_editor", "image_generator")
# Of hooks and commands; each parses its own.
_OF_OTHERS = {
    "remote": "compo_pipeline.parameters.urls:RemoteSettings",
    "serving": "compo_pipeline.registry.settings:ServingSettings",
}
# Names of the precisions, for settings that choose a device.
_PRECISIONS = {
    "evaluation": ("image_precision", "text_precision"),
    "pretraining": ("precision",),
    "training": ("precision",),
}


def class_paths() -> dict[str, str]:
    """Import paths of all settings classes by YAML key."""
    methods = {
        f"{name}.{part}": f"{entry.path}.{part}_type"
        for name, entry in METHODS.items()
        for part in ("views", "objective")
    }
    return SETTINGS | _OF_COUNTERFACTUALS | _OF_OTHERS | methods


def check_settings(parameters: Mapping[str, Any], pipeline: Pipeline) -> None:
    """Parse the settings of all nodes of a pipeline, and resolve devices and precisions.

    Args:
        parameters: the project's.
        pipeline: the one that is about to run.

    Raises:
        SettingsError: a value cannot be used; names its YAML key.
    """
    read = read_parameters(pipeline)
    for key in sorted(read & SETTINGS.keys()):
        settings: type = pkgutil.resolve_name(SETTINGS[key])
        parsed: Any = parse(settings, value_at(parameters, key), key)
        if key in _PRECISIONS:
            _check_compute(parsed, key)
    if {METHOD_SETTINGS, f"{METHOD_SETTINGS}.views"} & read:
        own = parameters[METHOD_SETTINGS]
        build(parameters["method"], own["views"], own["objective"])
    if edits_captions(read, parameters):
        for name in {parameters["counterfactuals"][each] for each in CHOICES} - {None}:
            key = f"counterfactuals.{name}"
            parse(pkgutil.resolve_name(_OF_COUNTERFACTUALS[key]), value_at(parameters, key), key)


def check_runner(runner: str, parameters: Mapping[str, Any], pipeline: Pipeline) -> None:
    """Refuse to train on several processes outside of the main one's main thread.

    Args:
        runner: name of Kedro's runner; the default is "None".
        parameters: the project's, after `check_settings`.
        pipeline: the one that is about to run.

    Raises:
        SettingsError: the runner is not the sequential one.
    """
    from compo_pipeline.training.settings import DistributedSettings

    if "checkpoint" not in pipeline.all_outputs() or "SequentialRunner" in runner:
        return
    key = "training.distributed"
    settings = parse(DistributedSettings, value_at(parameters, key), key)
    if runner != "None" and not settings.alone:
        raise SettingsError(
            f"{key}: the runner must be SequentialRunner, got {runner.split('.')[-1].split()[0]}: "
            "others run nodes in threads or in processes that may have none of their own, where "
            "the training's processes would outlive an interrupted run"
        )


def read_parameters(pipeline: Pipeline) -> set[str]:
    """Names of the parameters that a pipeline reads."""
    return {name.removeprefix(PARAMS) for name in pipeline.inputs() if name.startswith(PARAMS)}


def edits_captions(read: set[str], parameters: Mapping[str, Any]) -> bool:
    """Whether a pipeline edits captions, as the method needs counterfactuals."""
    return {"method", "counterfactuals"} <= read and find(parameters["method"]).counterfactuals


def _check_compute(settings: Any, key: str) -> None:
    """Resolve device and precisions, log them, and set the number of threads."""
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
