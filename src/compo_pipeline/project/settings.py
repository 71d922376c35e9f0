"""All settings of the project as one typed tree, and their check before the first node of a run.

Every default and every meaning is written in a settings class; conf/base holds what the demo sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from kedro.config import MissingConfigException
from pydantic import Field, StrictInt

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core import keys, offline, variants
from compo_pipeline.core.places import Paths, paths_of
from compo_pipeline.core.plugins import named_fields, plugin_fields
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.remote import RemoteSettings
from compo_pipeline.core.remote import configure as configure_remote
from compo_pipeline.core.settings import (
    SPEED,
    Name,
    Open,
    SettingsError,
    defaults,
    has_key,
    leaves,
    nearest,
    parse,
    plain,
    replaced,
    settings,
    speed_paths,
    with_values,
)
from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.core.variants import VariantName
from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.quality.settings import DataValidationSettings, IngestSettings
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.analysis.settings import AttentionSettings
from compo_pipeline.evaluation.settings import ComparisonSet, EvaluationSettings
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.counterfactuals.registry import (
    CAPTION_EDITORS,
    IMAGE_GENERATORS,
    chosen_entries,
    refuse_unfit,
)
from compo_pipeline.generation.counterfactuals.settings import KEY as COUNTERFACTUALS
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.generation.recaption.settings import KEY as RECAPTION
from compo_pipeline.generation.recaption.settings import LocalCaptionerSettings, RecaptionSettings
from compo_pipeline.language.settings import LanguageSettings
from compo_pipeline.methods.registry import METHOD_SETTINGS, METHODS, build, find, method_type
from compo_pipeline.methods.views import ViewSettings
from compo_pipeline.models.settings import ModelSettings, needs_network
from compo_pipeline.registry.settings import PromotionSettings, RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.serving.monitoring.settings import MonitoringSettings
from compo_pipeline.serving.settings import ServingSettings
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.settings import TuningSettings

if TYPE_CHECKING:
    from kedro.config import OmegaConfigLoader
    from kedro.pipeline import Pipeline

PARAMS = "params:"
CAPTIONERS: Mapping[str, type] = {
    "endpoint": EndpointSettings,
    "transformers": LocalCaptionerSettings,
}
"""Settings classes of captioners, by the value of recaption.captioner."""
# Part of the name of a folder; YAML reads a variant 2 as a number.
_Label = Annotated[Name, Field(coerce_numbers_to_str=True)]
SECTIONS = "compo_pipeline.settings"
"""Group of entry points by which installed packages add settings classes under their YAML key."""


@settings
class MethodSettings:
    """Settings of a training method: its views (training examples) and its objective."""

    views: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training examples."""
    objective: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the losses, and the towers that train."""


@settings
@plugin_fields(SECTIONS)
@named_fields(METHODS, MethodSettings)
class Parameters:
    """All settings of the project, each under its YAML key."""

    dataset: _Label
    """Name of the dataset, and of its folders under data/<layer>/."""
    method: _Label
    """Name of the method."""
    variant: VariantName
    """A named variant, several joined by `+`, or a label for your own values."""
    seed: StrictInt
    """Seed of all random draws in views and training."""
    models: str
    """List of models that `kedro run --pipeline=benchmark` scores, a name from `model_lists`."""
    set: str
    """Set of runs that `kedro run --pipeline=comparison` compares, a name from
    `comparison_sets`."""
    data: DataSettings
    promotion: PromotionSettings
    training: TrainingSettings
    tuning: TuningSettings
    validation: DataValidationSettings
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    benchmarks: BenchmarksSettings = field(default_factory=BenchmarksSettings)
    comparison_sets: Open[ComparisonSet] = field(default_factory=dict)
    """Sets of runs for `kedro run --pipeline=comparison --params set=<name>`, which trains the
    missing ones and compares all."""
    counterfactuals: CounterfactualSettings = field(default_factory=CounterfactualSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    foils: FoilSettings = field(default_factory=FoilSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    language: LanguageSettings = field(default_factory=LanguageSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    model_lists: Open[Open[ModelSettings]] = field(default_factory=dict)
    """Lists of models for `kedro run --pipeline=benchmark --params models=<list>`. The first model
    of a list is the baseline."""
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)
    prepare: Annotated[PrepareSettings, SPEED] = field(default_factory=PrepareSettings)
    recaption: RecaptionSettings = field(default_factory=RecaptionSettings)
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    spaces: Open[Open[Any]] = field(default_factory=dict)
    """Search spaces of `kedro run --pipeline=tuning`, by method. A space maps settings to their
    kind and bounds."""
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    variants: Open[Open[dict[str, Any]]] = field(default_factory=dict)
    """Named variants, by method. A variant maps dotted keys to values; those under `all` apply to
    every method."""
    views: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        """Refuse spaces and variants of unknown methods, and images of another editor's edits."""
        refuse_unfit(self.counterfactuals)
        for key, names in (("spaces", self.spaces), ("variants", self.variants)):
            known = [*METHODS, *(["all"] if key == "variants" else [])]
            if unknown := next((name for name in names if name not in known), None):
                raise ValueError(
                    f"{key}.{unknown}: there is no such method{nearest(unknown, known)} "
                    f"(known: {', '.join(known)})"
                )


@dataclass(frozen=True, kw_only=True)
class RunSettings(Parameters):
    """All settings of a run as its nodes get them, with those of the method in use."""

    paths: Paths
    """Folders of state and caches."""
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method in use."""
    generator_settings: Any = field(default_factory=dict)
    """Settings of the generator of the data. Empty for data that are not generated."""
    command: CommandOptions = field(default_factory=CommandOptions)
    """How the run was started."""
    site: Site = field(default_factory=Site)
    """Places of the run's pages."""


def loader_of(conf: Path, env: str | None, params: Mapping[str, Any]) -> OmegaConfigLoader:
    """Kedro's config loader for an environment and the overrides of `--params`.

    Args:
        conf: the project's configuration folder.
        env: Kedro environment. None is Kedro's default.
        params: nested, as `--params` gives them.
    """
    from kedro.framework.project import settings as project

    loader: OmegaConfigLoader = project.CONFIG_LOADER_CLASS(
        conf_source=str(conf),
        env=env,
        runtime_params=dict(params),
        **project.CONFIG_LOADER_ARGS,
    )
    return loader


def read_settings(loader: OmegaConfigLoader) -> RunSettings:
    """All settings of a run: of files, `--params` and the named variant, checked.

    URLs of folders are replaced by local mirrors; this process can read the object storage.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    environment, runtime = loader.env or loader.default_run_env, loader.runtime_params or {}
    conf = Path(loader.conf_source)
    keys.refuse_unknown(conf, environment)
    for folder in dict.fromkeys(("base", environment)):
        _check_compute_file(conf / folder / keys.COMPUTE)
    # Names with an underscore are YAML anchors and the like.
    given = {key: value for key, value in loader["parameters"].items() if not key.startswith("_")}
    find(str(given["method"]))
    place = place_of(loader)
    values = variants.applied(given, runtime, environment)
    remote = parse(RemoteSettings, values.get("remote") or {}, "remote", place)
    values = configure_remote(values, remote, _credentials(loader))
    return settings_of(values, CommandOptions(loader.env, dict(runtime)), place)


def settings_of(
    values: Mapping[str, Any],
    command: CommandOptions,
    place: Callable[[str], str] = lambda key: "",
) -> RunSettings:
    """The settings of a run from the values of all keys.

    Args:
        values: nested, as in YAML.
        command: command of the run.
        place: function that names the place of a key, for errors.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    method = find(str(values["method"])).name
    parsed = parse(Parameters, values, "", place)
    chosen: dict[str, type] = {
        f"{COUNTERFACTUALS}.{name}": entry.settings
        for name, entry in chosen_entries(parsed.counterfactuals)
    }
    if captioner := parsed.recaption.captioner:
        chosen[f"{RECAPTION}.{captioner}"] = CAPTIONERS[captioner]
    derived: dict[str, Any] = {
        key: parse(cls, attrgetter(key)(parsed), key, place) for key, cls in chosen.items()
    }
    if parsed.data.captioned is None:
        derived["data.captioned"] = captioner is None
    parsed = replaced(parsed, {**derived, **_generated_benchmarks(parsed)})
    own, generator = getattr(parsed, method), parsed.data.generator
    return RunSettings(
        **{each.name: getattr(parsed, each.name) for each in fields(cast(Any, parsed))},
        paths=paths_of(parsed.dataset, f"{method}/{parsed.variant}/seed={parsed.seed}"),
        method_settings={"views": own.views, "objective": own.objective},
        generator_settings=getattr(parsed, generator.format) if generator else {},
        command=command,
    )


def prepare(loader: OmegaConfigLoader, project: Path) -> RunSettings:
    """All checked settings of a run, after the process is prepared for them.

    The process then works in the project's folder, and downloads from the hub only if the model
    needs it.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    read = read_settings(loader)
    os.chdir(project)
    offline.set_hub_offline(not needs_network(read.model))
    return read


def _credentials(loader: OmegaConfigLoader) -> dict[str, Any]:
    """Credentials of the Kedro configuration, empty without a credentials file."""
    try:
        return dict(loader["credentials"])
    except MissingConfigException:
        return {}


def site_of(loader: OmegaConfigLoader, run: RunSettings) -> Site:
    """Folders that the catalog configures for the HTML pages of a run."""
    pages = {
        name: str(Path(entry["filepath"], entry["page"]))
        for name, entry in loader["catalog"].items()
        if not name.startswith("_") and "page" in entry
    }
    return Site(run.command, pages)


def settings_classes() -> dict[str, type]:
    """Settings classes by YAML key, of all top-level keys, methods, editors and generators."""
    own = {name: hint for name, hint in get_type_hints(Parameters).items() if is_dataclass(hint)}
    editors = {
        f"{COUNTERFACTUALS}.{name}": entry.settings
        for entries in (CAPTION_EDITORS, IMAGE_GENERATORS)
        for name, entry in entries.items()
    }
    methods = {
        f"{name}.{part}": getattr(method_type(name), f"{part}_type")
        for name in METHODS
        for part in ("views", "objective")
    }
    captioners = {f"{RECAPTION}.{name}": cls for name, cls in CAPTIONERS.items()}
    return {**own, **editors, **captioners, **methods}


def all_values(loader: OmegaConfigLoader) -> dict[str, Any]:
    """All values of an environment, including those of every method, editor and generator.

    What must be set before it is used is null.
    """
    values: dict[str, Any] = plain(read_settings(loader))
    for key, cls in settings_classes().items():
        owner, _, part = key.partition(".")
        if part:
            own = leaves(values[owner].get(part) or {})
            values[owner][part] = with_values(defaults(cls), dict(own))
    return values


def check_settings(
    parameters: RunSettings, pipeline: Pipeline, place: Callable[[str], str] = lambda key: ""
) -> None:
    """Check the settings that a pipeline uses: method, editor, captioner, devices, precisions.

    Args:
        parameters: the project's.
        pipeline: pipeline that is about to run.
        place: function that names the place of a key, for errors.

    Raises:
        SettingsError: a value cannot be used; names its YAML key.
    """
    read = read_parameters(pipeline)
    for key in sorted(read):
        own = getattr(parameters, key, None)
        if hasattr(own, "device") and hasattr(own, "precision"):
            _check_compute(own, key)
    if {METHOD_SETTINGS, f"{METHOD_SETTINGS}.views"} & read:
        build(parameters.method, **parameters.method_settings, place=place)


def read_parameters(pipeline: Pipeline) -> set[str]:
    """Names of the Kedro parameters that a pipeline reads."""
    return {name.removeprefix(PARAMS) for name in pipeline.inputs() if name.startswith(PARAMS)}


def _check_compute_file(file: Path) -> None:
    """Raise an error for settings in a compute file that may change results."""
    allowed = {*speed_paths(Parameters)}
    given = keys.content_of(file) if file.exists() else {}
    wrong = [
        key
        for key, _ in leaves(given)
        if not any(key == each or key.startswith(f"{each}.") for each in allowed)
    ]
    if wrong:
        raise SettingsError(
            f"conf/{file.parent.name}/{file.name}: {', '.join(wrong)} may change results, and DVC "
            f"does not read this file; expected {', '.join(sorted(allowed))}"
        )


def place_of(loader: OmegaConfigLoader) -> Callable[[str], str]:
    """Function from a dotted key to the file, option or variant that sets it, for errors.

    It is `--params: `, a file as in `conf/coco/parameters.yml: `, a variant as in
    `variants.all.lora: `, or empty for a key that nothing sets.
    """
    conf, environment = Path(loader.conf_source), loader.env or loader.default_run_env

    def place(key: str) -> str:
        if has_key(loader.runtime_params or {}, key):
            return "--params: "
        if named := variants.place_of(loader["parameters"], key):
            return named
        for folder in dict.fromkeys((environment, "base")):
            for path, values in keys.read(conf / folder, "parameters").items():
                if has_key(values, key):
                    return f"conf/{path.relative_to(conf)}: "
        return ""

    return place


def _generated_benchmarks(parsed: Parameters) -> dict[str, str]:
    """Folders of benchmarks that are generated with the data, by the keys that name none."""
    data = parsed.data
    if data.generator is None:
        return {}
    generator, root = GENERATORS[data.generator.format], str(data.root)
    if data.sources:
        root = f"{root}/{os.path.relpath(data.generator.root, data.root)}"
    generated = {
        "benchmarks.root": generator.benchmarks(root, "test"),
        "tuning.benchmarks.root": generator.benchmarks(root, "val"),
    }
    return {key: root for key, root in generated.items() if attrgetter(key)(parsed) is None}


def _check_compute(settings: Any, key: str) -> None:
    """Resolve and log device and precision of settings, and set the number of threads."""
    from compo_pipeline.core import compute

    compute.use_cores()
    compute.report(key, compute.resolve(settings.device, settings.precision, key=key))
