"""All settings of the project as one typed tree, read once for a run.

Every default and every meaning is written in a settings class; conf/base holds what the demo sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core import keys, offline, variants
from compo_pipeline.core.places import Paths, paths_of
from compo_pipeline.core.plugins import named_fields, points_of
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.remote import RemoteSettings
from compo_pipeline.core.remote import configure as configure_remote
from compo_pipeline.core.settings import (
    NUMBERS_TOO,
    SPEED,
    Name,
    Open,
    SettingsError,
    leaves,
    nearest,
    parse,
    plain,
    settings,
    speed_keys,
    value_at,
    with_values,
)
from compo_pipeline.core.table_files import PrepareSettings
from compo_pipeline.core.variants import VariantName
from compo_pipeline.data.generators import GENERATORS
from compo_pipeline.data.quality.settings import DataValidationSettings, IngestSettings
from compo_pipeline.data.settings import DataSettings
from compo_pipeline.evaluation.settings import (
    AttentionSettings,
    ComparisonSet,
    EvaluationSettings,
    ListedModel,
)
from compo_pipeline.generation.counterfactuals.settings import CounterfactualSettings
from compo_pipeline.generation.foils.settings import FoilSettings
from compo_pipeline.generation.recaption.settings import RecaptionSettings
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
@named_fields({point.name: point.load() for point in points_of(SECTIONS)})
@named_fields(dict.fromkeys(METHODS, MethodSettings))
class Parameters:
    """All settings of the project, each under its YAML key."""

    dataset: Annotated[Name, NUMBERS_TOO]
    """Name of the dataset, and of its folders under data/<layer>/."""
    method: Annotated[Name, NUMBERS_TOO]
    """Name of the method."""
    variant: VariantName
    """A named variant, several joined by `+`, or a label for your own values."""
    seed: int
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
    model_lists: Open[Open[ListedModel]] = field(default_factory=dict)
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
        """Refuse spaces and variants of unknown methods."""
        for key, names in (("spaces", self.spaces), ("variants", self.variants)):
            known = [*METHODS, *(["all"] if key == "variants" else [])]
            if unknown := next((name for name in names if name not in known), None):
                raise ValueError(
                    f"{key}.{unknown}: there is no such method{nearest(unknown, known)} "
                    f"(known: {', '.join(known)})"
                )

    @property
    def paths(self) -> Paths:
        """Folders of state and caches."""
        return paths_of(self.dataset, f"{self.method}/{self.variant}/seed={self.seed}")

    @property
    def method_settings(self) -> dict[str, Any]:
        """Settings of the method in use: its views and its objective."""
        own = getattr(self, self.method)
        return {"views": own.views, "objective": own.objective}

    @property
    def generator_settings(self) -> Any:
        """Settings of the generator of the data. Empty for data that are not generated."""
        made = self.data.generator
        return getattr(self, made.format) if made else {}


class SettingsContext(KedroContext):
    """Kedro's context, whose parameters are the settings objects, read once."""

    def __init__(self, **given: Any) -> None:
        """Read all settings, and prepare the process for them: see `prepare`.

        Raises:
            SettingsError: an unknown key, or a value that cannot be used.
        """
        super().__init__(**given)
        loader = cast("OmegaConfigLoader", self.config_loader)
        self.settings = prepare(loader, self.project_path)
        self.command = CommandOptions(loader.env, dict(loader.runtime_params or {}))

    @property
    def params(self) -> dict[str, Any]:
        """Settings by top-level key, and what follows from them.

        Nodes read them as `params:data` and `params:data.root`.
        """
        pages = {
            name: str(Path(entry["filepath"], entry["page"]))
            for name, entry in self.config_loader["catalog"].items()
            if not name.startswith("_") and "page" in entry
        }
        derived = ("paths", METHOD_SETTINGS, "generator_settings")
        names = (*(each.name for each in fields(cast(Any, self.settings))), *derived)
        return {
            **{name: getattr(self.settings, name) for name in names},
            "command": self.command,
            "site": Site(self.command, pages),
        }


@cache
def with_methods() -> type[Parameters]:
    """`Parameters` with the types of the settings of all methods, whose import takes seconds."""
    kinds: dict[str, type] = {}
    for name in METHODS:
        method, made = method_type(name), type(name, (), {"__annotations__": {}})
        parts = {"views": method.views_type, "objective": method.objective_type}
        kinds[name] = settings(named_fields(parts)(made))
    every: Any = type("Parameters", (Parameters,), {"__annotations__": {}})
    return settings(named_fields(kinds)(every))


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


def read_settings(loader: OmegaConfigLoader, kind: type[Parameters] = Parameters) -> Parameters:
    """All settings of a run: of files, `--params` and the named variant, checked.

    URLs of folders are replaced by local mirrors; this process can read the object storage.

    Args:
        loader: Kedro's loader of the configuration.
        kind: class of the settings.

    Raises:
        SettingsError: an unknown key or a value that cannot be used, one line each.
    """
    environment = loader.env or loader.default_run_env
    conf, place = Path(loader.conf_source), place_of(loader)
    keys.refuse_unknown(conf, environment)
    for folder in dict.fromkeys(("base", environment)):
        _check_compute_file(conf / folder / keys.COMPUTE)
    # Names with an underscore are YAML anchors and the like.
    given = {key: value for key, value in loader["parameters"].items() if not key.startswith("_")}
    find(str(given["method"]))
    values = variants.applied(given, loader.runtime_params or {}, environment)
    remote = parse(RemoteSettings, values.get("remote") or {}, "remote", place)
    try:
        credentials = loader["credentials"]
    except MissingConfigException:
        credentials = {}
    return completed(parse(kind, configure_remote(values, remote, credentials), "", place))


def completed(given: Parameters) -> Parameters:
    """Settings with the values that follow from others in place of null."""
    data, made = given.data, given.data.generator
    if data.captioned is None:
        data = replace(data, captioned=given.recaption.captioner is None)
    benchmarks, tuning = given.benchmarks, given.tuning
    if made is not None:
        # Benchmarks that are generated with the data.
        folder = GENERATORS[made.format].benchmarks
        selecting, root = tuning.benchmarks, str(made.root)
        benchmarks = replace(benchmarks, root=benchmarks.root or folder(root, "test"))
        selecting = replace(selecting, root=selecting.root or folder(root, "val"))
        tuning = replace(tuning, benchmarks=selecting)
    return replace(given, data=data, benchmarks=benchmarks, tuning=tuning)


def prepare(loader: OmegaConfigLoader, project: Path) -> Parameters:
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


def all_values(loader: OmegaConfigLoader) -> dict[str, Any]:
    """All values of an environment as in YAML, with those of every method."""
    values: dict[str, Any] = plain(read_settings(loader, with_methods()))
    return values


def check_settings(
    parameters: Parameters, pipeline: Pipeline, place: Callable[[str], str] = lambda key: ""
) -> None:
    """Check the settings that a pipeline uses: method, editor, captioner, devices, precisions.

    Args:
        parameters: the project's.
        pipeline: pipeline that is about to run.
        place: function that names the place of a key, for errors.

    Raises:
        SettingsError: a value cannot be used; names its YAML key.
    """
    from compo_pipeline.core import compute

    read = read_parameters(pipeline)
    for key in sorted(read):
        own: Any = getattr(parameters, key, None)
        if hasattr(own, "device") and hasattr(own, "precision"):
            compute.use_cores()
            compute.report(key, compute.resolve(own.device, own.precision, key=key))
    if {METHOD_SETTINGS, f"{METHOD_SETTINGS}.views"} & read:
        build(parameters.method, **parameters.method_settings, place=place)


def read_parameters(pipeline: Pipeline) -> set[str]:
    """Names of the Kedro parameters that a pipeline reads."""
    return {name.removeprefix(PARAMS) for name in pipeline.inputs() if name.startswith(PARAMS)}


def _check_compute_file(file: Path) -> None:
    """Raise an error for settings in a compute file that may change results."""
    allowed = speed_keys(Parameters)
    given = keys.content_of(file) if file.exists() else {}
    wrong = [
        key
        for key, _ in leaves(given)
        if not any(f"{key}.".startswith(f"{each}.") for each in allowed)
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

    def places() -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the places of values with these, that which counts first."""
        yield "--params", loader.runtime_params or {}
        for name, values in reversed(variants.layers(loader["parameters"])):
            yield name, with_values({}, values)
        for folder in (environment, "base"):
            for path, content in keys.read(conf / folder, "parameters").items():
                yield f"conf/{path.relative_to(conf)}", content

    def place(key: str) -> str:
        for name, values in places():
            with suppress(KeyError, TypeError):
                value_at(values, key)
                return f"{name}: "
        return ""

    return place
