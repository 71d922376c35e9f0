"""Command-line interface: `compo-pipeline`'s own commands and options of `kedro run`.

Kedro imports this module before it runs any command.

Telemetry is switched off and the log set up here for that reason.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.cli.utils import _split_params as kedro_split_params

from compo_pipeline.core import console, offline, provenance
from compo_pipeline.core.removed import replacement
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.models.settings import LAYOUTS, LOCAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kedro.framework.startup import ProjectMetadata

    from compo_pipeline.project.settings import Parameters

# Exit status of a program that Ctrl+C ended.
_INTERRUPTED = 130
# Options of `kedro run` that select nodes, by the names that Kedro's functions have for them.
_SELECTION = {
    "tags": "tags",
    "from_nodes": "from_nodes",
    "to_nodes": "to_nodes",
    "node_names": "node_names",
    "from_inputs": "from_inputs",
    "to_outputs": "to_outputs",
    "namespaces": "node_namespaces",
}

offline.disable_telemetry()
console.log_plain_lines_off_terminal()


@click.group(name="compo-pipeline")
def cli() -> None:
    """The project's own commands, in addition to those of Kedro."""


def _split_params(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Click callback of `--params`: Kedro's own, which fails on values that are no YAML."""
    if isinstance(value, str):
        pairs = (item.partition("=") for item in value.split(","))
        value = ",".join(
            f"{key}{equals}{provenance.quote_unreadable(given)}" for key, equals, given in pairs
        )
    return kedro_split_params(context, option, value)


def _project_options(command: Any) -> Any:
    """Decorator of a command that reads settings: its options `--env` and `--params`."""
    given = click.option("--params", default="", callback=_split_params, help="As for `kedro run`.")
    return click.option("-e", "--env", help="Kedro's environment.")(given(command))


def _run(**given: Any) -> None:
    """Command `run`: Kedro's own, with one-line messages for misspelt options and Ctrl+C."""
    from compo_pipeline.pipeline_registry import register_pipelines

    known = list(register_pipelines())
    for name in filter(None, [given["pipeline"], *given["pipelines"]]):
        if name not in known:
            hint = replacement(f"--pipeline={name}") or nearest(name, known)
            raise SettingsError(f"--pipeline: no '{name}'{hint} (known: {', '.join(known)})")
    _check_selection(given)
    try:
        click.get_current_context().invoke(kedro_run, **given)
    except KeyboardInterrupt:
        click.echo("\nInterrupted. The same command resumes; saved work is reused.", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _check_selection(given: Mapping[str, Any]) -> None:
    """Raise an error if there is no such Kedro runner, or the options select no nodes.

    Raises:
        SettingsError: naming the runner or the nodes.
    """
    from kedro.framework.project import pipelines
    from kedro.pipeline import Pipeline
    from kedro.utils import load_obj

    chosen = {name: given[option] for option, name in _SELECTION.items() if given.get(option)}
    names = given["pipelines"] or [given["pipeline"] or "__default__"]
    try:
        load_obj(given["runner"] or "SequentialRunner", "kedro.runner")
        if chosen:
            sum((pipelines[name] for name in names), Pipeline([])).filter(**chosen)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(" ".join(str(error).split())) from None


for option in kedro_run.params:
    if option.name == "params":
        option.callback = _split_params
cli.add_command(
    click.Command(
        "run",
        callback=_run,
        params=kedro_run.params,
        help=kedro_run.help,
        short_help="Run a pipeline; by default all from the data to a registered model.",
    )
)


@cli.command()
@click.argument("prefix", default="")
@click.option("-e", "--env", help="Also show the values of this environment.  [default: local]")
@click.pass_obj
def params(project: ProjectMetadata, prefix: str, env: str | None) -> None:
    """List the parameters, or those that begin with PREFIX: defaults, types, meanings."""
    from compo_pipeline.core import reference
    from compo_pipeline.project import settings

    conf, env = Path(project.project_path) / "conf", env or "local"
    default, values = (
        settings.all_values(settings.loader_of(conf, each, {})) for each in ("base", env)
    )
    entries = [*reference.collect_entries(settings.with_methods(), default, values)]
    reference.show(reference.chosen(entries, prefix), env, console.terminal())


@cli.command(name="try")
@click.option("--alias", help="Of the registered version.  [default: champion]")
@click.option("--version", type=click.IntRange(1), help="The version itself, instead of an alias.")
@_project_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True)
@click.pass_obj
def try_version(
    project: ProjectMetadata,
    alias: str | None,
    version: int | None,
    env: str | None,
    params: dict[str, Any],
    host: str,
    port: int,
) -> None:
    """Serve a page that compares a registered version and its base: captions, attention maps."""
    if alias is not None and version is not None:
        raise click.UsageError("--alias and --version both name a version: give one of them")
    from compo_pipeline.pages import try_page
    from compo_pipeline.registry.settings import CHAMPION

    settings = _settings(project, env, params)
    try_page.run(
        settings.registration,
        settings.tracking,
        settings.model,
        settings.evaluation,
        settings.benchmarks,
        alias or CHAMPION,
        version,
        host,
        port,
    )


@cli.command()
@click.option("--alias", help="Of the registered version.  [default: champion]")
@click.option("--version", type=click.IntRange(1), help="The version itself, instead of an alias.")
@click.option(
    "--model",
    help="models:/<name>@<alias>, models:/<name>/<version> or the folder of an exported model, "
    "instead of registration.name.",
)
@click.option(
    "--shadow",
    metavar="ALIAS|NUMBER",
    help="A challenger that is asked besides; /shadow tells how often it orders texts alike.",
)
@click.option(
    "--share",
    type=float,
    help="Of the requests that --shadow is asked, above 0 and at most 1.  [default: 0.1]",
)
@_project_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5001, show_default=True)
@click.pass_obj
def serve(
    project: ProjectMetadata,
    alias: str | None,
    version: int | None,
    model: str | None,
    shadow: str | None,
    share: float | None,
    env: str | None,
    params: dict[str, Any],
    host: str,
    port: int,
) -> None:
    """Answer requests over HTTP with a registered version, as `mlflow models serve` does."""
    if sum(given is not None for given in (alias, version, model)) > 1:
        raise click.UsageError("--alias, --version and --model: give one of them")
    if share is not None and shadow is None:
        raise click.UsageError("--share is of --shadow, which names the challenger: give both")
    if share is not None and not 0 < share <= 1:
        raise click.UsageError(f"--share: {share:g} is no share above 0, and at most 1")
    from compo_pipeline.serving import server as serving

    settings = _settings(project, env, params)
    serving.run(
        settings.serving,
        settings.registration,
        settings.tracking,
        model,
        alias,
        version,
        host,
        port,
        shadow,
        share or 0.1,
    )


@cli.command()
def pipelines() -> None:
    """List the pipelines that `kedro run --pipeline=...` runs, and what each is for."""
    from compo_pipeline.pipeline_registry import descriptions

    for name, text in descriptions().items():
        click.echo(f"{name:<16} {text}")


@cli.command()
@_project_options
@click.option("--missing", is_flag=True, help="Paths of missing images instead, one a line.")
@click.pass_obj
def benchmarks(
    project: ProjectMetadata, env: str | None, params: dict[str, Any], missing: bool
) -> None:
    """List the benchmarks: what is there, what is missing, and where to get it."""
    from compo_pipeline.benchmarks.loading import benchmark_availability
    from compo_pipeline.pages.report import show_available

    found = benchmark_availability(_settings(project, env, params).benchmarks)
    if missing:
        click.echo("".join(f"{path}\n" for one in found for path in one.absent), nl=False)
    else:
        show_available(found)


@cli.command()
@click.option("--list", "name", default="bases", show_default=True, help="A name of model_lists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_project_options
@click.pass_obj
def bases(
    project: ProjectMetadata, name: str, as_json: bool, env: str | None, params: dict[str, Any]
) -> None:
    """List base models: size, cost, and the methods and exports that fit them."""
    from compo_pipeline.evaluation.suite import listed_models
    from compo_pipeline.methods.registry import METHODS, build
    from compo_pipeline.pages.report import show_bases
    from compo_pipeline.training.bases import describe

    settings = _settings(project, env, params)
    methods = {}
    for method, entry in METHODS.items():
        own = getattr(settings, method)
        methods[entry.label] = build(method, own.views, own.objective)
    listed = listed_models(name, settings.model_lists)
    bases = [each for each in listed.items() if each[1].scorer is None]
    found = [describe(*each, methods, settings.training) for each in bases]
    if as_json:
        click.echo(json.dumps([asdict(base) for base in found], indent=1))
    else:
        show_bases(found)


@cli.command()
@click.option("--table", help="Show the values of one table, such as clic/3.")
@click.option("--json", "as_json", is_flag=True, help="Print all values as JSON.")
@_project_options
@click.pass_obj
def ledger(
    project: ProjectMetadata,
    table: str | None,
    as_json: bool,
    env: str | None,
    params: dict[str, Any],
) -> None:
    """List the papers' values that commands here measure, and what they are here."""
    from compo_pipeline.core.files import write_files
    from compo_pipeline.pages import report
    from compo_pipeline.pages.tables import show
    from compo_pipeline.tuning.ledger import read_ledger

    lists = _settings(project, env, params).model_lists
    entries = read_ledger(lists, table)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    show(report.ledger_page(entries, folded=table is None))
    file = Path("data/08_reporting/ledger/ledger.html")
    page = report.ledger_page(entries if table is None else read_ledger(lists))
    write_files(page.files(file.name), file.parent)
    click.echo(f"Page: {file}")


@cli.command(name="versions")
@_project_options
@click.pass_obj
def versions(project: ProjectMetadata, env: str | None, params: dict[str, Any]) -> None:
    """List the registered versions: dataset, method, variant, seed, main metric, aliases."""
    from compo_pipeline.registry import runs as tracking
    from compo_pipeline.registry import versions as registered

    tracking.connect(_settings(project, env, params).tracking, project.project_path)
    registered.show_table()


@cli.command()
@click.argument("version")
@click.argument("repository")
@click.option("--public", is_flag=True, help="Let everyone read a repository that is created.")
@_project_options
@click.pass_obj
def push(
    project: ProjectMetadata,
    version: str,
    repository: str,
    *,
    public: bool,
    env: str | None,
    params: dict[str, Any],
) -> None:
    """Upload a registered version to the Hugging Face hub.

    VERSION is its number or alias, or models:/<name>/<version>, and REPOSITORY is <owner>/<name>.
    The repository is private, unless --public is given.
    """
    offline.set_hub_offline(False)
    from compo_pipeline.registry import publishing
    from compo_pipeline.registry import runs as tracking

    settings = _settings(project, env, params)
    tracking.connect(settings.tracking, project.project_path)
    url, private = publishing.push(version, repository, settings.registration, public=public)
    click.echo(f"Pushed: {url} ({'private' if private else 'public'})")


@cli.command(name="train")
@_project_options
@click.pass_obj
def train_(project: ProjectMetadata, env: str | None, params: dict[str, Any]) -> None:
    """Train as one of the processes on several hosts that torchrun starts.

    The first process stores the states: `kedro run --pipeline=training` there exports and logs
    what is trained. Every host has the same configuration, and the data at its own path.
    """
    from kedro.framework.project import pipelines
    from kedro.framework.session import KedroSession
    from kedro.runner import SequentialRunner

    from compo_pipeline.core.remote import refresh_all
    from compo_pipeline.core.settings import plain
    from compo_pipeline.methods.registry import build
    from compo_pipeline.training.launch import train_together
    from compo_pipeline.training.loop import jobs_of

    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise click.UsageError("run it by torchrun: torchrun ... --no-python compo-pipeline train")
    # A context checks all settings, and changes to the project's folder.
    session: Any = KedroSession.create(Path(project.project_path), env=env, runtime_params=params)
    with session:
        context = session.load_context()
    context._pipelines_to_validate = ["training"]
    settings = context.settings
    refresh_all(plain(settings), {"data"})
    # The nodes of the pipeline up to the training itself.
    before = pipelines["training"].to_outputs("training_inputs")
    inputs = SequentialRunner().run(before, context.catalog)["training_inputs"].load()
    jobs = jobs_of(
        build(settings.method, **settings.method_settings),
        inputs.resume / "checkpoint",
        inputs.resume / "control_checkpoint",
        control=settings.evaluation.control,
    )
    train_together(inputs, jobs, lambda name, point: None)


@cli.command(name="import-model")
@click.argument("source")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--weights", help="Of an architecture: a file, or a tag of open_clip.")
@click.option("--layout", type=click.Choice(list(LAYOUTS)), help="Whose checkpoint the file is.")
@click.option("--mixed-with", help="Tag or file that the layout clove mixes with, not OpenAI's.")
@click.option(
    "--quick-gelu/--no-quick-gelu",
    default=None,
    help="Whether a file that does not say so was trained with QuickGELU.",
)
@click.option("--context-length", type=click.IntRange(1), help="Token ids of a text.")
@click.option("--tokenizer", help="Folder of a Hugging Face tokenizer.")
@click.option("--seed", type=click.IntRange(0), help="Random weights, instead of --weights.")
@click.pass_obj
def import_model(project: ProjectMetadata, /, source: str, folder: Path, **options: Any) -> None:
    """Convert a model of open_clip or transformers to a local folder that `model.name` can name.

    SOURCE is an architecture of open_clip, a folder of open_clip or of transformers (CLIP,
    MetaCLIP 2, Chinese-CLIP, SigLIP), or hf-hub:<owner/model>. Prints the YAML lines that use
    FOLDER.
    """
    import yaml

    offline.set_hub_offline(Path(source).is_dir())
    from compo_pipeline.models import importing

    importing.import_model(importing.ImportRequest(source, **options), folder)
    done = "Read again, it is the source: weights, preprocessing and tokenizer."
    click.echo(f"Written: {folder}. {done}", err=True)
    place, root = folder.resolve(), Path(project.project_path).resolve()
    place = place.relative_to(root) if place.is_relative_to(root) else place
    model = {"name": f"{LOCAL_PREFIX}{place}", "pretrained": None}
    click.echo(yaml.safe_dump({"model": model}, sort_keys=False, allow_unicode=True), nl=False)


@cli.command(name="export-model")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--onnx", is_flag=True, help="Instead: two ONNX files, one for each tower.")
def export_model(checkpoint: Path, folder: Path, *, onnx: bool) -> None:
    """Convert a checkpoint for transformers and sentence-transformers, or to ONNX files."""
    from compo_pipeline.models import hf_export, onnx_export

    written = onnx_export.to_onnx if onnx else hf_export.to_hugging_face
    click.echo(f"Written: {written(checkpoint, folder)}")


@cli.command(name="mteb-results")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--owner", default="local", show_default=True, help="Of the models' names.")
def mteb_results(run: Path, folder: Path, owner: str) -> None:
    """Write scores as results of mteb, of the benchmarks that it has with the same items.

    RUN is the folder of a run or of a list of models in data/07_model_output. FOLDER may be mteb's
    cache.
    """
    from compo_pipeline.core.files import read_json
    from compo_pipeline.core.records import Score
    from compo_pipeline.core.settings import parse
    from compo_pipeline.core.tables import Table
    from compo_pipeline.evaluation import mteb_results
    from compo_pipeline.evaluation.evaluate import Comparison

    table = run / "scores.parquet"
    found = [run / name for name in ("comparison.json", "suite.json") if (run / name).is_file()]
    if not found or not table.is_file():
        raise SettingsError(
            f"{run}: expected scores.parquet with comparison.json or suite.json, which kedro run "
            "writes below data/07_model_output/ (--pipeline=benchmark: benchmark/<models>)"
        )
    comparison = parse(Comparison, read_json(found[0]), found[0].name)
    scores = Table.open(table, Score)
    written, left_out = mteb_results.write_results(scores, comparison, folder, owner)
    for name, reason in left_out.items():
        click.echo(f"Left out: {name}: {reason}", err=True)
    for path in written:
        click.echo(f"Written: {path}")
    if not written:
        raise SettingsError(f"{run}: no benchmark in it has the items and metric of a task of mteb")


def _settings(project: ProjectMetadata, env: str | None, params: dict[str, Any]) -> Parameters:
    """Typed settings of the project in an environment, with the overrides of `--params`."""
    from compo_pipeline.project.settings import loader_of, prepare

    path = Path(project.project_path)
    return prepare(loader_of(path / "conf", env, params), path)
