"""Nodes of the pipeline `tuning`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core import variants
from compo_pipeline.core.files import record_json
from compo_pipeline.core.hashing import hash_of
from compo_pipeline.core.places import Paths
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError, leaves, parse, plain
from compo_pipeline.evaluation.comparison import by_model
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import compare_runs
from compo_pipeline.methods.registry import build
from compo_pipeline.pages.study_page import CONFIRMATION, PAGE, study_page
from compo_pipeline.pages.tables import show
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.runs import RunLog
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.tuning import selection
from compo_pipeline.tuning.cells import CellSet, load_runs, run_cells
from compo_pipeline.tuning.settings import TuningSettings
from compo_pipeline.tuning.space import Space, read, searchable
from compo_pipeline.tuning.study import load_study, open_study
from compo_pipeline.tuning.trial import (
    BEST,
    SCORE,
    TrialInputs,
    TrialObjective,
    TunedRun,
    best_trial,
    search,
    summary,
)

CONFIGURED, TUNED = "configured", "tuned"

log = logging.getLogger(__name__)


def read_space(
    training: TrainingInputs,
    method: str,
    method_settings: Mapping[str, Any],
    evaluation: EvaluationSettings,
    spaces: Mapping[str, Any],
) -> tuple[TrialInputs, Space]:
    """Inputs that all trials share, and the method's search space.

    Raises:
        SettingsError: it has none, or a key of it cannot be searched.
    """
    built = build(method, method_settings["views"], method_settings["objective"])
    configured = {"training": plain(training.settings), method: built.configuration}
    if not spaces.get(method):
        raise SettingsError(
            f"spaces: none for '{method}' (known: {', '.join(spaces)}); add "
            f"conf/base/parameters_spaces/{method}.yml"
        )
    space = read(spaces[method], f"spaces.{method}", configured, searchable(method))
    return TrialInputs(method, configured, training, evaluation), space


def run_study(
    inputs: TrialInputs,
    space: Space,
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    tuning: TuningSettings,
    benchmarks: BenchmarksSettings,
    paths: Paths,
    command: CommandOptions,
    variant: str,
) -> dict[str, Any]:
    """Run the Optuna study until all trials have ended, and write its best values.

    Trials are scored on held-out items, none of which is a reported benchmark item.
    """
    items = selection.study_items(
        *(tuning.benchmarks, benchmarks, valid_captions, inputs.training.root),
        *(inputs.evaluation.workers, foils),
    )
    folder = Path(paths.tuning)
    objective = TrialObjective(
        inputs=inputs.for_trials(tuning.trial),
        space=space,
        settings=tuning.objective.of_items({item.benchmark for item in items}),
        items=items,
        folder=Path(paths.tuning_trials) / hash_of(tuning.study.name),
    )
    plan = objective.plan(tuning, folder)
    study = open_study(plan)
    search(objective, plan)
    best, run = best_trial(study), name_tuned_run(command, inputs.method, variant)
    (folder / BEST).unlink(missing_ok=True)
    found = None
    if best is not None:
        run.write(study, best, folder / BEST)
        score = best.user_attrs[SCORE]
        log.info("Trial %d is the best: score %.4g with %s", best.number, score, best.params)
        found = {"trial": best.number, "score": score, "values": best.params}
        found["command"] = run.command(best.params)
    return {
        "name": study.study_name,
        "configured": dict(plan.configured),
        "best": found,
        **summary(study),
    }


def name_tuned_run(command: CommandOptions, method: str, variant: str) -> TunedRun:
    """Environment and parameters for `train_eval` to train with the best values."""
    given = {key: value for key, value in command.params.items() if key != "tuning"}
    study = command.params.get("tuning", {}).get("study", {}).get("name")
    name = variants.tuned(variant, study)
    return TunedRun(command.env, {**dict(leaves(given)), "variant": name}, method)


def confirm_best(
    study: Mapping[str, Any],
    inputs: TrialInputs,
    tuning: TuningSettings,
    command: CommandOptions,
    variant: str,
    folder: str,
) -> dict[str, Any]:
    """Compare base, configured and tuned recipe on the reported items, or return a reason.

    The best trial was chosen by the same items that scored it. Both recipes are therefore trained
    and evaluated as by `train_eval`, with seeds and views that no trial has had.
    """
    count, best = tuning.confirmation, study["best"]
    reason = None
    if not count:
        reason = "tuning.confirmation is 0"
    elif best is None:
        reason = "no trial meets every constraint"
    elif best["values"] == study["configured"]:
        reason = "the configured values are the best that were tried"
    if reason is not None:
        log.info("No confirmation: %s.", reason)
        return {"reason": reason}
    run = name_tuned_run(command, inputs.method, variant)
    configured = {**run.given, "method": inputs.method, "variant": variant}
    # Other values may have been confirmed before; the control is that of the configured recipe.
    own = {"training.overwrite": True, "evaluation.control": False, "variant": run.given["variant"]}
    cells = {
        CONFIGURED: {"env": run.env, "params": configured},
        TUNED: {"env": run.env, "params": {**configured, **best["values"], **own}},
    }
    first = inputs.training.seed + 1
    chosen = CellSet("tuning.confirmation", range(first, first + count), cells)
    runs = run_cells(chosen, inputs.training.data_hash, Path(folder))
    suite = compare_runs(load_runs(runs), [(TUNED, CONFIGURED)])
    return {"seeds": list(chosen.seeds), "suite": record_json(suite)}


def write_study(
    study: Mapping[str, Any],
    confirmation: Mapping[str, Any],
    inputs: TrialInputs,
    tuning: TuningSettings,
    paths: Paths,
    dataset: str,
    variant: str,
    site: Site,
) -> dict[str, str | bytes]:
    """Page about the study and table of its trials, which an MLflow run has too."""
    database = load_study(tuning.study, Path(paths.tuning))
    page = study_page(database, study, confirmation, site.facts("tuning"))
    show(page, CONFIRMATION)
    files = {**page.files(PAGE), "trials.csv": database.trials_dataframe().to_csv(index=False)}
    training = inputs.training
    tags = {"dataset": dataset, "method": inputs.method, "variant": variant}
    tags |= {"seed": str(training.seed), "data_hash": training.data_hash, "study": study["name"]}
    figures = {"trials": study["trials"]}
    if "suite" in confirmation:
        figures |= by_model(parse(Comparison, confirmation["suite"], "confirmation").rows)
    run_id = tracking.log_figures(f"tuning-{study['name']}", tags, figures, files)
    # The storage's URL may contain a password.
    settings = {key: value for key, value in plain(tuning).items() if key != "study"}
    best = {} if study["best"] is None else {"best": study["best"]["values"]}
    with tracking.store_errors():
        RunLog(run_id).params({"tuning": settings, "configured": study["configured"], **best})
    return files
