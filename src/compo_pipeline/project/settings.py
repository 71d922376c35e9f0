"""All settings of the project as one typed tree, and their check before the first node of a run.

Every default and every meaning is written in a settings class; conf/base holds what the demo sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from kedro.config import MissingConfigException
from pydantic import Field, PositiveInt, StrictInt

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.configuration import keys, rehearsal, variants
from compo_pipeline.configuration.places import PathSettings
from compo_pipeline.configuration.plugins import plugin_fields
from compo_pipeline.configuration.settings import (
    SPEED,
    Name,
    Open,
    SettingsError,
    defaults,
    field_paths,
    leaves,
    nearest,
    parse,
    plain,
    settings,
    speed_paths,
    value_at,
    with_values,
)
from compo_pipeline.configuration.variants import VariantName
from compo_pipeline.counterfactuals.registry import (
    CAPTION_EDITORS,
    IMAGE_GENERATORS,
    chosen_entries,
    refuse_unfit,
)
from compo_pipeline.counterfactuals.settings import KEY as COUNTERFACTUALS
from compo_pipeline.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.datasets.generators import GENERATOR_SETTINGS, GENERATORS
from compo_pipeline.datasets.quality.settings import DataValidationSettings, IngestSettings
from compo_pipeline.datasets.recaption.settings import KEY as RECAPTION
from compo_pipeline.datasets.recaption.settings import LocalCaptionerSettings, RecaptionSettings
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.analysis.settings import AttentionSettings, SweepSettings
from compo_pipeline.evaluation.settings import ComparisonSet, EvaluationSettings, SuiteSettings
from compo_pipeline.foils.settings import FoilSettings
from compo_pipeline.language.settings import LanguageSettings
from compo_pipeline.methods.registry import METHOD_SETTINGS, METHODS, build, find, method_type
from compo_pipeline.methods.views import ViewSettings
from compo_pipeline.models.settings import ExportSettings, ModelSettings, needs_network
from compo_pipeline.monitoring.settings import MonitoringSettings
from compo_pipeline.project.recipe import RecipeFacts
from compo_pipeline.run import offline
from compo_pipeline.run.engines import PrepareSettings
from compo_pipeline.run.provenance import CommandOptions, Site
from compo_pipeline.serving.settings import ServingSettings
from compo_pipeline.storage.settings import RemoteSettings
from compo_pipeline.storage.settings import configure as configure_remote
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning.settings import TuningSettings
from compo_pipeline.versions.settings import PromotionSettings, RegistrationSettings

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
# Fields with a precision, of settings that choose a device too.
_PRECISIONS = ("precision", "image_precision", "text_precision")


@settings
class MethodSettings:
    """Settings of a training method: its views (training examples) and its objective."""

    views: dict[str, Any] = field(default_factory=dict)
    """What a training example is made of."""
    objective: dict[str, Any] = field(default_factory=dict)
    """The losses, and what is trained."""


@settings
@plugin_fields(SECTIONS)
class Parameters:
    """All settings of the project except those of the methods, each under its YAML key."""

    dataset: _Label
    """Name of the data: a folder under data/<layer>/."""
    method: _Label
    """Name of the method."""
    variant: VariantName
    """A named variant, several joined by `+`, or a label for values of your own."""
    seed: StrictInt
    """Seed of everything that is drawn at random in views and training."""
    models: str
    """List of models that `kedro run --pipeline=benchmark` scores: one of `model_lists`."""
    set: str
    """Set of runs that `kedro run --pipeline=comparison` compares: one of `comparison_sets`."""
    data: DataSettings
    paths: PathSettings
    promotion: PromotionSettings
    training: TrainingSettings
    tuning: TuningSettings
    validation: DataValidationSettings
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    benchmarks: BenchmarksSettings = field(default_factory=BenchmarksSettings)
    comparison_sets: Open[ComparisonSet] = field(default_factory=dict)
    """Sets of runs that `kedro run --pipeline=comparison --params set=<name>` trains where they are
    missing, and compares."""
    counterfactuals: CounterfactualSettings = field(default_factory=CounterfactualSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    foils: FoilSettings = field(default_factory=FoilSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    language: LanguageSettings = field(default_factory=LanguageSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    model_lists: Open[Open[ModelSettings]] = field(default_factory=dict)
    """Models that `kedro run --pipeline=benchmark --params models=<list>` scores, by list; the
    first of a list is the baseline."""
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)
    prepare: Annotated[PrepareSettings, SPEED] = field(default_factory=PrepareSettings)
    recaption: RecaptionSettings = field(default_factory=RecaptionSettings)
    recipe: RecipeFacts = field(default_factory=RecipeFacts)
    """What the recipe's paper says of its data and its cost."""
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    spaces: Open[Open[Any]] = field(default_factory=dict)
    """Search spaces of `kedro run --pipeline=tuning`, by method: a setting to its kind and
    bounds."""
    subset: PositiveInt | None = None
    """Training rows of a rehearsal of the whole chain, by `--params` alone; null: all rows, no
    rehearsal (docs/reference/recipes.md)."""
    suite: SuiteSettings = field(default_factory=SuiteSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    variants: Open[Open[dict[str, Any]]] = field(default_factory=dict)
    """Values that `--params variant=<name>` stands for, by dotted key: for all, and by method in
    addition."""
    views: ViewSettings = field(default_factory=ViewSettings)
    wise_ft: SweepSettings = field(default_factory=SweepSettings)

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


@settings
class RunSettings(Parameters):
    """All settings of a run as its nodes get them, with those of the method in use."""

    method_settings: MethodSettings = field(default_factory=MethodSettings)
    """Those of the method in use."""
    generator_settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of the generator of the data; empty for data that are not generated."""
    command: CommandOptions = field(default_factory=CommandOptions)
    """How the run was started."""
    site: Site = field(default_factory=Site)
    """Where its pages are written."""


def loader_of(conf: Path, env: str | None, params: Mapping[str, Any]) -> OmegaConfigLoader:
    """Kedro's config loader for an environment and the overrides of `--params`.

    Args:
        conf: the project's configuration folder.
        env: the environment; None is Kedro's default.
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


def configured_values(loader: OmegaConfigLoader) -> dict[str, Any]:
    """All checked settings of a run, with defaults, as plain nested mappings.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    environment, runtime = loader.env or loader.default_run_env, loader.runtime_params or {}
    conf = Path(loader.conf_source)
    keys.check(conf, environment)
    for folder in dict.fromkeys(("base", environment)):
        _check_compute_file(conf / folder / keys.COMPUTE)
    try:
        read = loader["parameters"]
    except ValueError as error:  # a key stands in two files of an environment
        raise SettingsError(str(error)) from None
    # Names with an underscore are YAML anchors and the like.
    given = {name: value for name, value in read.items() if not name.startswith("_")}
    method = find(str(given["method"])).name
    place = place_of(loader, given)
    values = variants.applied(given, runtime, environment)
    sections = {
        name: parse(MethodSettings, values[name] or {}, name, place)
        for name in METHODS
        if name in values
    }
    own = sections.get(method, MethodSettings())
    values = {name: each for name, each in values.items() if name not in METHODS}
    typed = parse(Parameters, values, "", place, _paths_of_method(method))
    parsed = plain(typed)
    parsed["data"]["root"] = values["data"]["root"]  # a Path has one slash of a URL's two
    parsed[METHOD_SETTINGS] = plain(own)
    generator = typed.data.generator
    parsed[GENERATOR_SETTINGS] = parsed[generator.format] if generator else {}
    if parsed["data"]["captioned"] is None:
        parsed["data"]["captioned"] = parsed[RECAPTION]["captioner"] is None
    parsed["command"] = {"env": loader.env, "params": dict(runtime)}
    return _with_generated_benchmarks(rehearsal.applied(parsed, runtime))


def prepared_values(loader: OmegaConfigLoader, project: Path) -> dict[str, Any]:
    """All checked settings of a run, after the process is prepared for them.

    The process then works in the project's folder, has access to the object storage that the
    settings name, and downloads from the hub only if the model needs it. URLs of folders are
    replaced by local mirrors.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    values = configured_values(loader)
    remote = parse(RemoteSettings, values["remote"], "remote")
    values = configure_remote(values, remote, _credentials(loader))
    os.chdir(project)
    offline.set_hub_offline(not needs_network(run_settings(values).model))
    return values


def _credentials(loader: OmegaConfigLoader) -> dict[str, Any]:
    """Credentials of the Kedro configuration; empty without a credentials file."""
    try:
        return dict(loader["credentials"])
    except MissingConfigException:
        return {}


def site_of(
    loader: OmegaConfigLoader, command: Mapping[str, Any], rehearsed: int | None = None
) -> dict[str, Any]:
    """The parameter `site` as a dict: page paths, running command, rows of a rehearsal."""
    entries = loader["catalog"].items()
    pages = {
        name: str(Path(entry["filepath"], entry["page"]))
        for name, entry in entries
        if not name.startswith("_") and "page" in entry
    }
    return {"command": dict(command), "pages": pages, "rehearsed": rehearsed}


def run_settings(values: Mapping[str, Any]) -> RunSettings:
    """Parse the values returned by `configured_values` to typed settings."""
    return parse(RunSettings, values, "")


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
    values, given = configured_values(loader), loader["parameters"]
    for key, cls in settings_classes().items():
        owner, _, part = key.partition(".")
        if part:
            own = leaves((given.get(owner) or {}).get(part) or {})
            values.setdefault(owner, {})[part] = with_values(defaults(cls), dict(own))
    return values


def check_settings(
    parameters: RunSettings, pipeline: Pipeline, place: Callable[[str], str] = lambda key: ""
) -> None:
    """Check the settings that a pipeline uses: method, editor, captioner, devices, precisions.

    Args:
        parameters: the project's.
        pipeline: the one that is about to run.
        place: of `place_of`, for errors.

    Raises:
        SettingsError: a value cannot be used; names its YAML key.
    """
    read = read_parameters(pipeline)
    if parameters.subset is not None and "promotion" in read:
        raise SettingsError(
            f"subset: a rehearsal on {parameters.subset:,} rows is never promoted; leave it out to "
            "promote the version of the real run"
        )
    for key in sorted(read):
        own = getattr(parameters, key, None)
        if hasattr(own, "device") and any(hasattr(own, name) for name in _PRECISIONS):
            _check_compute(own, key)
    if {METHOD_SETTINGS, f"{METHOD_SETTINGS}.views"} & read:
        own = parameters.method_settings
        build(parameters.method, own.views, own.objective, place)
    captioner = parameters.recaption.captioner
    if RECAPTION in read and captioner is not None:
        given = getattr(parameters.recaption, captioner)
        parse(CAPTIONERS[captioner], given, f"{RECAPTION}.{captioner}", place)
    if edits_captions(read, parameters):
        for name, entry in chosen_entries(parameters.counterfactuals):
            given = getattr(parameters.counterfactuals, name)
            parse(entry.settings, given, f"{COUNTERFACTUALS}.{name}", place)


def check_runner(runner: str, parameters: RunSettings, pipeline: Pipeline) -> None:
    """Raise an error for a distributed training under another runner than SequentialRunner.

    Args:
        runner: name of Kedro's runner; the default is "None".
        parameters: the project's.
        pipeline: the one that is about to run.

    Raises:
        SettingsError: the runner is not the sequential one.
    """
    if "checkpoint" not in pipeline.all_outputs() or "SequentialRunner" in runner:
        return
    if runner != "None" and parameters.training.distributed.nproc_per_node != 1:
        raise SettingsError(
            "training.distributed: the runner must be SequentialRunner, got "
            f"{runner.split('.')[-1].split()[0]}: others run nodes in threads or in processes that "
            "may have none of their own, where the training's processes would outlive an "
            "interrupted run"
        )


def read_parameters(pipeline: Pipeline) -> set[str]:
    """Names of the Kedro parameters that a pipeline reads."""
    return {name.removeprefix(PARAMS) for name in pipeline.inputs() if name.startswith(PARAMS)}


def edits_captions(read: set[str], parameters: RunSettings) -> bool:
    """Whether a pipeline edits captions, because the method needs counterfactuals."""
    return {"method", "counterfactuals"} <= read and find(parameters.method).counterfactuals


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


def place_of(loader: OmegaConfigLoader, given: Mapping[str, Any]) -> Callable[[str], str]:
    """Function from a dotted key to the file, option or variant that sets it, for errors.

    Args:
        loader: of the configuration.
        given: the parameters, with `method`, `variant` and `variants`.
    """
    environment, runtime = loader.env or loader.default_run_env, loader.runtime_params or {}
    configured = keys.place_of(Path(loader.conf_source), environment, runtime)

    def place(key: str) -> str:
        found = configured(key)
        return found if found.startswith("--params") else variants.place_of(given, key) or found

    return place


def _paths_of_method(name: str) -> Iterator[str]:
    """Yield the dotted keys of a method's settings; imports the method at the first one."""
    method = method_type(name)
    yield from field_paths(method.views_type, f"{name}.views")
    yield from field_paths(method.objective_type, f"{name}.objective")


def _with_generated_benchmarks(values: dict[str, Any]) -> dict[str, Any]:
    """Values in which `benchmarks.root` defaults to the benchmarks generated with the data."""
    data = parse(DataSettings, values["data"], "data")
    if data.generator is None:
        return values
    generator, root = GENERATORS[data.generator.format], values["data"]["root"]
    if data.sources:
        root = f"{root}/{os.path.relpath(data.generator.root, data.root)}"
    generated = {
        "benchmarks.root": generator.benchmarks(root, "test"),
        "training.validation.benchmarks.root": generator.benchmarks(root, "val"),
        "tuning.benchmarks.root": generator.benchmarks(root, "val"),
    }
    unset = {key: root for key, root in generated.items() if value_at(values, key) is None}
    return with_values(values, unset)


def _check_compute(settings: Any, key: str) -> None:
    """Resolve and log device and precisions of settings, and set the number of threads."""
    from compo_pipeline.run import compute

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
        for name in _PRECISIONS
        if name in hints
    }
    for each in sorted(found, key=str):
        compute.report(key, each)
