"""Nodes of the pipeline `training`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.registry import BENCHMARKS
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.configuration.settings import SettingsError, plain
from compo_pipeline.evaluation.analysis.wise_ft import COMPOSITION, choose_ratio, mix
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods import registry
from compo_pipeline.methods.contract import Method
from compo_pipeline.storage.files import (
    FolderWriter,
    move_folder,
    read_json_or_none,
    write_files,
    write_json,
)
from compo_pipeline.storage.records import Caption, Foil
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tracking.run_log import LiveCurves
from compo_pipeline.training import launch
from compo_pipeline.training.checkpoint import Progress
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import CONTROL, Trainer, jobs_of, no_control
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import PREFIX
from compo_pipeline.tuning.selection import TUNED, study_items

NO_CONTROL = "no_control.json"
CURVES = "train"  # prefix of their names in MLflow
RATIOS = "wise_ft_ratios.json"


def build_method(method: str, method_settings: Mapping[str, Any]) -> Method:
    """Create the training method that is configured, with its settings."""
    return registry.build(method, method_settings["views"], method_settings["objective"])


def open_run(
    inputs: TrainingInputs,
    trained: Method,
    counterfactuals_report: Mapping[str, Any],
    control: bool,
    dataset: str,
    variant: str,
) -> dict[str, Any]:
    """Open the MLflow run of the training, or the run of an interrupted training with equal inputs.

    In MLflow the control has a run within the method's, so that the curves of both share names
    and charts. Both are open before training: the store may not answer after it.

    Raises:
        FingerprintError: the state on disk belongs to another configuration.
    """
    trainer, method = Trainer(inputs), trained.name
    trainer.steps_done(trained, method)  # a state of another configuration is refused here
    tags = {"dataset": dataset, "method": method, "variant": variant, "seed": str(inputs.seed)}
    tags["data_hash"] = inputs.data_hash
    if inputs.rows:
        tags["rows"] = inputs.rows
    run_id = _find_or_open_run(
        trainer.fingerprint(trained),
        inputs.resume / "run.json",
        f"{dataset}-{method}-{variant}-seed{inputs.seed}",
        tags,
    )
    params = {**tags, "model": plain(inputs.model), "training": plain(inputs.settings)}
    params |= {method: trained.configuration, "compute": trainer.compute.facts()}
    if counterfactuals_report["edits"]:
        params["counterfactuals"] = counterfactuals_report
    with tracking.log_into(run_id) as record:
        record.params(params)
        reason = no_control(trained, wanted=control)
        child = None if reason else tracking.child_run(record.run_id, CONTROL)
    return {
        "run_id": run_id,
        "control_run_id": child,
        "no_control": reason,
        "method": method,
        "label": registry.label(method),
        "variant": variant,
        "seed": inputs.seed,
        "rows": inputs.rows,
    }


def choose_ratio_items(
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    selecting: BenchmarksSettings,
    benchmarks: BenchmarksSettings,
    root: Path,
    training: TrainingSettings,
) -> Sequence[Subtask]:
    """Held-out items that choose the WiSE-FT ratio; empty if the ratio is configured.

    Raises:
        SettingsError: they are missing, not of composition, official or among the reported ones.
    """
    if training.wise_ft.ratio != "auto":
        return []
    key, workers = "training.wise_ft.ratio", EvaluationSettings().workers
    items = study_items(selecting, benchmarks, valid_captions, Path(root), workers, foils)
    if not any(BENCHMARKS[task.benchmark].role == COMPOSITION for task in items):
        raise SettingsError(f"{key}: auto needs items of composition at {TUNED}, or give a number")
    return items


def train_models(
    inputs: TrainingInputs,
    trained: Method,
    run: Mapping[str, Any],
    ratio_items: Sequence[Subtask],
) -> tuple[FolderWriter, FolderWriter, dict[str, Progress]]:
    """Train the method and its control; returns functions that write the checkpoints, and progress.

    Both are trained together: processes of several hosts meet once. In place of a control there may
    be a file with the reason for none. The ratio that `ratio_items` choose for the method is the
    control's too.
    """
    own, control = (inputs.resume / f"{name}_checkpoint" for name in (trained.name, CONTROL))
    jobs = jobs_of(trained, own, control, control=run["control_run_id"] is not None)
    run_ids = {trained.name: run["run_id"], CONTROL: run["control_run_id"]}
    curves = LiveCurves(CURVES)
    with ExitStack() as opened:
        records = {
            job.name: opened.enter_context(tracking.adopt(run_ids[job.name], adopted_later=True))
            for job in jobs
        }

        def report(name: str, point: Mapping[str, float]) -> None:
            curves.add(records[name], _logged(trained, [point]))

        progress = launch.train(Trainer(inputs), jobs, report)
        if ratio_items:
            device = inputs.settings.device
            ratio, figures = choose_ratio(ratio_items, inputs.model, own, device)
            chosen = {"ratio": ratio, "figures": figures.to_dict("records")}
            with tracking.store_errors():
                records[trained.name].document(chosen, RATIOS)
            if ratio < 1:
                for job in jobs:
                    mix(inputs.model, job.folder, ratio)
    written = partial(move_folder, control)
    if CONTROL not in records:
        reason = json.dumps({"reason": run["no_control"]})
        written = partial(write_files, {NO_CONTROL: reason})
    return partial(move_folder, own), written, progress


def log_training(
    run: Mapping[str, Any], trained: Method, progress: Mapping[str, Progress]
) -> pd.DataFrame:
    """Log batch counts and missing curve points to MLflow; returns all curves as a table."""
    for name, done in progress.items():
        run_id = run["control_run_id"] if name == CONTROL else run["run_id"]
        with tracking.adopt(run_id) as record, tracking.store_errors():
            record.missing_curves(_logged(trained, done.curve), CURVES)
            record.document(dict(done.counts), "batches.json")
    curves = [pd.DataFrame(done.curve).assign(model=name) for name, done in progress.items()]
    table = pd.concat(curves, ignore_index=True)
    return table[sorted(table.columns, key=lambda name: str(name).startswith(PREFIX))]


def log_views_preview(views_preview: Path, run: Mapping[str, Any]) -> None:
    """Log the HTML preview of training views to the MLflow run."""
    with tracking.log_into(run["run_id"]) as record:
        record.artefact(views_preview, "views")


def _logged(method: Method, curve: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Points of training curves for MLflow, without the logit scale if it is not trained."""
    constant = () if method.trains_scale else ("scale",)
    return [{name: v for name, v in point.items() if name not in constant} for point in curve]


def _find_or_open_run(
    fingerprint: Mapping[str, Any], note: Path, name: str, tags: Mapping[str, str]
) -> str:
    """Id of the MLflow run of an interrupted training with this fingerprint, or of a new run.

    A training that was interrupted, or is asked for again, logs where it began.
    """
    known = read_json_or_none(note)
    if known and known["fingerprint"] == fingerprint:
        return str(known["run_id"])
    run_id = tracking.open_run(name, tags)
    write_json(note, {"run_id": run_id, "fingerprint": fingerprint})
    return run_id
