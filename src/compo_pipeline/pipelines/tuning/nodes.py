"""Nodes of the pipeline `tuning`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks import loading
from compo_pipeline.benchmarks.items import Subtask, titles
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration import variants
from compo_pipeline.configuration.places import PathSettings
from compo_pipeline.configuration.settings import SettingsError, leaves, parse, plain
from compo_pipeline.datasets.settings import DataSettings
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.language.parsing import load_once, name_and_version
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.mixture import Mixture
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import ViewSettings, annotations_of, by_sample
from compo_pipeline.presentation import study_page as page
from compo_pipeline.presentation.study_terminal import StudyDisplay
from compo_pipeline.presentation.tables import show_comparison
from compo_pipeline.run.provenance import CommandOptions
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.files import FolderWriter
from compo_pipeline.storage.records import Annotation, Caption, Counterfactual, Foil, Parse
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Trainer
from compo_pipeline.tuning import results, selection
from compo_pipeline.tuning.confirmation import Confirmation, StoredConfirmation, as_comparison
from compo_pipeline.tuning.record import TuningRecord
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.settings import TuningSettings
from compo_pipeline.tuning.space import Space, read, searchable
from compo_pipeline.tuning.study import RUN_ID, load_study
from compo_pipeline.tuning.trial import TrialInputs, TrialObjective, search

log = logging.getLogger(__name__)


def collect_inputs(
    training: TrainingInputs,
    method: str,
    method_settings: Mapping[str, Any],
    evaluation: EvaluationSettings,
) -> TrialInputs:
    """Inputs that all trials of the study share."""
    built = build(method, method_settings["views"], method_settings["objective"])
    configured = {"training": plain(training.settings), method: built.configuration}
    return TrialInputs(method, configured, training, evaluation)


def read_space(inputs: TrialInputs, spaces: Mapping[str, Any]) -> Space:
    """The method's search space, from its configuration.

    Raises:
        SettingsError: it has none, or a key of it cannot be searched.
    """
    method = inputs.method
    if method not in spaces:
        raise SettingsError(
            f"spaces: none for '{method}' (known: {', '.join(spaces)}); add "
            f"conf/base/parameters_spaces/{method}.yml"
        )
    return read(spaces[method], f"spaces.{method}", inputs.parameters, searchable(method))


def choose_items(
    inputs: TrialInputs,
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    tuning: TuningSettings,
    benchmarks: BenchmarksSettings,
) -> Sequence[Subtask]:
    """Held-out items on which trials are scored; none is a reported benchmark item."""
    root, workers = inputs.training.root, inputs.evaluation.workers
    chosen = tuning.benchmarks
    return selection.study_items(chosen, benchmarks, valid_captions, root, workers, foils)


def name_tuned_run(command: CommandOptions, method: str, variant: str) -> TunedRun:
    """Environment and parameters for `train_eval` to train with the best values."""
    given = {key: value for key, value in command.params.items() if key != "tuning"}
    study = command.params.get("tuning", {}).get("study", {}).get("name")
    name = variants.tuned(variant, study)
    return TunedRun(command.env, {**dict(leaves(given)), "variant": name}, method)


def open_record(training: TrainingInputs, method: str, dataset: str, variant: str) -> TuningRecord:
    """MLflow logger of the study and its trials."""
    tags = {"dataset": dataset, "method": method, "variant": variant}
    return TuningRecord.here(tags | {"seed": str(training.seed), "data_hash": training.data_hash})


def build_objective(
    inputs: TrialInputs,
    space: Space,
    items: Sequence[Subtask],
    recorder: TuningRecord,
    tuning: TuningSettings,
    paths: PathSettings,
) -> TrialObjective:
    """Optuna objective: trains a trial's values and scores it on held-out items."""
    return TrialObjective(
        inputs=inputs.for_trials(tuning.trial),
        space=space,
        settings=tuning.objective.of_items({item.benchmark for item in items}),
        items=items,
        folder=Path(paths.tuning_trials) / f"{digest(tuning.study.name):016x}",
        recorder=recorder,
    )


def run_study(
    objective: TrialObjective,
    inputs: TrialInputs,
    tuning: TuningSettings,
    tuned_run: TunedRun,
    paths: PathSettings,
) -> dict[str, Any]:
    """Run the Optuna study until all trials have finished, and write its best values."""
    configured, folder = objective.space.configured(inputs.parameters), Path(paths.tuning)
    plan = objective.plan(tuning.study, configured, folder)
    with StudyDisplay(tuning.study.trials) as display:
        study = search(objective, plan, objective.recorder, display.show)
    results.write(study, configured, folder, tuned_run)
    best = results.best(study)
    return {
        "run_id": study.user_attrs[RUN_ID],
        "name": study.study_name,
        "configured": configured,
        "best": None if best is None else {"trial": best.number, "values": best.params},
        **results.summary(study),
    }


def build_confirmation(
    inputs: TrialInputs,
    view_context: ViewContext,
    items: Sequence[Subtask],
    views: ViewSettings,
    paths: PathSettings,
    data: DataSettings,
) -> Confirmation:
    """The trainings that confirm the best values on the reported benchmark items."""
    mixture = Mixture.from_weights(data.weights, data.epoch_rows, view_context.seed)
    folder = Path(paths.tuning_confirmed)
    return Confirmation(inputs, view_context, views, items, folder, mixture)


def choose_context(
    inputs: TrialInputs,
    parses: Sequence[Parse],
    counterfactuals: Sequence[Counterfactual],
    annotations: Sequence[Annotation],
    views: ViewSettings,
    language_model: str,
) -> ViewContext:
    """Parses, counterfactuals and annotations for the views of confirmation trainings."""
    language = name_and_version(load_once(language_model)) if parses else ""
    others = annotations_of(inputs.build()[0], views.from_table, annotations)
    return ViewContext.from_parses(parses, language, 0, by_sample(counterfactuals), others)


def gather_items(
    inputs: TrialInputs,
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    benchmarks: BenchmarksSettings,
) -> Sequence[Subtask]:
    """Benchmark items on which the confirmed models are reported."""
    return loading.gather(benchmarks, valid_captions, inputs.training.root, foils)


def confirm_best(
    study: Mapping[str, Any], confirmation: Confirmation, tuning: TuningSettings, dataset: str
) -> dict[str, Any]:
    """Compare base, configured and tuned recipe on the reported items, or return a reason."""
    count, training = tuning.confirmation.seeds, confirmation.inputs.training
    if reason := _nothing_to_confirm(study, count):
        log.info("No confirmation: %s.", reason)
        return {"reason": reason}
    seeds = [training.seed + 1 + place for place in range(count)]
    processes = min(tuning.study.processes(Trainer(training).device), 2 * count)
    rows = confirmation.run(study["best"]["values"], seeds, processes)
    comparison = as_comparison(rows, dataset, titles(confirmation.items))
    with tracking.adopt(study["run_id"]) as record:
        record.metrics(by_model(rows))
        record.document(comparison.to_json(), "confirmation.json")
    show_comparison(comparison)
    return {"seeds": seeds, "comparison": comparison.to_json()}


def write_study(
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    space: Space,
    tuning: TuningSettings,
    tuned_run: TunedRun,
    paths: PathSettings,
) -> FolderWriter:
    """Return a function that writes the HTML page about the study."""
    loaded_study = load_study(tuning.study, Path(paths.tuning))
    found = parse(StoredConfirmation, confirmation, "confirmation")
    return lambda folder: page.write(
        loaded_study, study["configured"], folder, space, tuned_run, found
    )


def log_study(
    study: Mapping[str, Any], tuning_report: Path, tuning: TuningSettings, paths: PathSettings
) -> None:
    """Log the study's settings, page and best values to its MLflow run."""
    with tracking.adopt(study["run_id"]) as record:
        # The storage's URL may contain a password.
        settings = {key: value for key, value in plain(tuning).items() if key != "study"}
        best = {} if study["best"] is None else {"best": study["best"]["values"]}
        record.params({"tuning": settings, "configured": study["configured"], **best})
        record.artefact(tuning_report, "study")
        for file in sorted(Path(paths.tuning).glob("*.yml")):
            record.artefact(file)


def _nothing_to_confirm(study: Mapping[str, Any], seeds: int) -> str | None:
    """Reason why the best trial is not confirmed; None if it is to be confirmed."""
    if not seeds:
        return "tuning.confirmation.seeds is 0"
    if study["best"] is None:
        return "no trial meets every constraint"
    if study["best"]["values"] == study["configured"]:
        return "the configured values are the best that were tried"
    return None
