"""Nodes of the pipeline `tuning`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.configuration import SettingsError, leaves, parse, plain
from compo_pipeline.evaluation.benchmarks import loading
from compo_pipeline.evaluation.benchmarks.items import titles
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.settings import BenchmarksSettings, EvaluationSettings
from compo_pipeline.language.parsing import loaded, name_and_version
from compo_pipeline.methods.contract import ViewContext
from compo_pipeline.methods.registry import build
from compo_pipeline.methods.views import ViewSettings, by_sample
from compo_pipeline.presentation import study_page as page
from compo_pipeline.presentation.study_terminal import StudyDisplay
from compo_pipeline.presentation.tables import show_comparison
from compo_pipeline.records import Caption, Counterfactual, Parse
from compo_pipeline.registry import tracking
from compo_pipeline.seeding import digest
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import Trainer
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.tuning import results, selection
from compo_pipeline.tuning.confirmation import Confirmation, StoredConfirmation, as_comparison
from compo_pipeline.tuning.record import TuningRecord
from compo_pipeline.tuning.results import TunedRun
from compo_pipeline.tuning.settings import TuningSettings
from compo_pipeline.tuning.space import Space, read, searchable
from compo_pipeline.tuning.study import RUN_ID, load_study
from compo_pipeline.tuning.trial import TrialInputs, TrialObjective, search

log = logging.getLogger(__name__)


def search_space(
    training: TrainingInputs,
    valid_captions: Sequence[Caption],
    tuning: TuningSettings,
    spaces: Mapping[str, Any],
    method: str,
    method_settings: Mapping[str, Any],
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    dataset: str,
    variant: str,
    command: Mapping[str, Any],
    trials_folder: str,
    study_folder: str,
) -> dict[str, Any]:
    """Run the study until all trials have finished, and write its best values."""
    inputs = _inputs(training, method, method_settings, evaluation)
    space = _space(spaces, method, inputs.parameters)
    configured = space.configured(inputs.parameters)
    tags = {"dataset": dataset, "method": method, "variant": variant}
    tags |= {"seed": str(training.seed), "data_hash": training.data_hash}
    recorder = TuningRecord.here(tags)
    objective = TrialObjective(
        inputs=inputs.for_trials(tuning.trial),
        space=space,
        settings=tuning.objective,
        items=selection.study_items(
            tuning.benchmarks, benchmarks, valid_captions, training.root, evaluation.workers
        ),
        folder=Path(trials_folder) / f"{digest(tuning.study.name):016x}",
        recorder=recorder,
    )
    folder = Path(study_folder)
    plan = objective.plan(tuning.study, configured, folder)
    with StudyDisplay(tuning.study.trials, tuning.study.retries) as display:
        study = search(objective, plan, recorder, display.show)
    results.write(study, configured, folder, _tuned_run(command))
    best = results.best(study)
    return {
        "run_id": study.user_attrs[RUN_ID],
        "name": study.study_name,
        "configured": configured,
        "best": None if best is None else {"trial": best.number, "values": best.params},
        **results.summary(study),
    }


def confirm_best(
    study: Mapping[str, Any],
    training: TrainingInputs,
    valid_captions: Sequence[Caption],
    parses: Sequence[Parse],
    counterfactuals: Sequence[Counterfactual],
    tuning: TuningSettings,
    views: ViewSettings,
    method: str,
    method_settings: Mapping[str, Any],
    evaluation: EvaluationSettings,
    benchmarks: BenchmarksSettings,
    language_model: str,
    dataset: str,
    folder: str,
) -> dict[str, Any]:
    """Compare base, configured and tuned recipe on the reported items, or say why not."""
    count = tuning.confirmation.seeds
    if reason := _nothing_to_confirm(study, count):
        log.info("No confirmation: %s.", reason)
        return {"reason": reason}
    language = name_and_version(loaded(language_model)) if parses else ""
    confirmation = Confirmation(
        inputs=_inputs(training, method, method_settings, evaluation),
        view_context=ViewContext.of(parses, language, 0, by_sample(counterfactuals)),
        epochs=views.epochs,
        items=loading.gather(benchmarks, valid_captions, training.root),
        folder=Path(folder),
    )
    seeds = [training.seed + 1 + place for place in range(count)]
    processes = min(tuning.study.processes(Trainer(training).device), 2 * count)
    rows = confirmation.run(study["best"]["values"], seeds, processes)
    comparison = as_comparison(rows, dataset, titles(confirmation.items))
    with tracking.adopt(study["run_id"]) as record:
        record.metrics(by_model(rows))
        record.document(comparison.to_json(), "confirmation.json")
    show_comparison(comparison)
    return {"seeds": seeds, "comparison": comparison.to_json()}


def show_study(
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    tuning: TuningSettings,
    spaces: Mapping[str, Any],
    command: Mapping[str, Any],
    method: str,
    method_settings: Mapping[str, Any],
    training: TrainingSettings,
    study_folder: str,
    report_folder: str,
) -> Path:
    """Write the page, and log it to the study's run with the best values."""
    folder, report = Path(study_folder), Path(report_folder)
    own = build(method, method_settings["views"], method_settings["objective"]).configuration
    page.write(
        load_study(tuning.study, folder),
        study["configured"],
        report,
        _space(spaces, method, {"training": plain(training), method: own}),
        _tuned_run(command),
        parse(StoredConfirmation, confirmation, "confirmation"),
    )
    with tracking.adopt(study["run_id"]) as record:
        # The storage's URL may contain a password.
        settings = {key: value for key, value in plain(tuning).items() if key != "study"}
        best = {} if study["best"] is None else {"best": study["best"]["values"]}
        record.params({"tuning": settings, "configured": study["configured"], **best})
        record.artefact(report, "study")
        for file in sorted(folder.glob("*.yml")):
            record.artefact(file)
    return report


def _inputs(
    training: TrainingInputs,
    method: str,
    method_settings: Mapping[str, Any],
    evaluation: EvaluationSettings,
) -> TrialInputs:

    built = build(method, method_settings["views"], method_settings["objective"])
    configured = {"training": plain(training.settings), method: built.configuration}
    return TrialInputs(method, configured, training, evaluation)


def _space(spaces: Mapping[str, Any], method: str, configured: Mapping[str, Any]) -> Space:

    if method not in spaces:
        raise SettingsError(
            f"spaces: none for '{method}' (known: {', '.join(spaces)}); add "
            f"conf/base/parameters_spaces/{method}.yml"
        )
    return read(spaces[method], f"spaces.{method}", configured, searchable(method))


def _tuned_run(command: Mapping[str, Any]) -> TunedRun:
    """How `train_eval` runs with the best values: in this run's environment, as a variant."""
    given = {key: value for key, value in command["params"].items() if key != "tuning"}
    return TunedRun(command["env"], {**dict(leaves(given)), "variant": "tuned"})


def _nothing_to_confirm(study: Mapping[str, Any], seeds: int) -> str | None:
    if not seeds:
        return "tuning.confirmation.seeds is 0"
    if study["best"] is None:
        return "no trial meets every constraint"
    if study["best"]["values"] == study["configured"]:
        return "the configured values are the best that were tried"
    return None
