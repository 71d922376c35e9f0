"""Nodes of the pipeline `training`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BENCHMARKS, BenchmarksSettings
from compo_pipeline.core.files import read_json_or_none, write_json
from compo_pipeline.core.places import Paths
from compo_pipeline.core.provenance import CommandOptions
from compo_pipeline.core.records import Caption, Foil
from compo_pipeline.core.settings import SettingsError, plain
from compo_pipeline.core.tables import Splits, held_out_note, training_rows
from compo_pipeline.evaluation.analysis.wise_ft import COMPOSITION, choose_ratio, mix
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods import registry
from compo_pipeline.methods.contract import Method
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.runs import LiveCurves, RunLog
from compo_pipeline.training import launch
from compo_pipeline.training.checkpoint import Progress, read_matching_progress
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of
from compo_pipeline.training.loop import CONTROL, jobs_of, no_control, train_jobs
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import PREFIX
from compo_pipeline.tuning.selection import TUNED, held_out, study_items

NO_CONTROL = "no_control.json"
CURVES = "train"  # prefix of their names in MLflow
RATIOS = "wise_ft_ratios.json"


def prepare_training(
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    manifest: Mapping[str, Any],
    views: Path,
    counterfactual_images: Path,
    model: ModelSettings,
    training: TrainingSettings,
    split: Splits,
    seed: int,
    root: Path,
    benchmarks: BenchmarksSettings,
    selecting: BenchmarksSettings,
    paths: Paths,
) -> TrainingInputs:
    """Choose the rows that train, and held-out rows and items that validate.

    No item of `benchmarks` validates; `selecting` has the files of the validation figure. The
    trainings of a method and its control share these inputs.
    """
    return TrainingInputs(
        captions=training_rows(valid_captions, split),
        data_hash=str(manifest["data_hash"]),
        views=views,
        root=root,
        model=model,
        settings=training,
        seed=seed,
        resume=Path(paths.resume),
        counterfactual_images=counterfactual_images,
        features=Path(paths.features),
        held_out=held_out(
            training.validation, valid_captions, root, split, benchmarks, selecting, foils
        ),
        rows=held_out_note(valid_captions, split),
    )


def open_run(
    inputs: TrainingInputs,
    counterfactuals_report: Mapping[str, Any],
    method: str,
    method_settings: Mapping[str, Any],
    control: bool,
    dataset: str,
    variant: str,
    command: CommandOptions,
) -> dict[str, Any]:
    """Open the MLflow run of the training, or the run of an interrupted training with equal inputs.

    In MLflow the control has a run within the method's, so that the curves of both share names
    and charts. Both are open before training: the store may not answer after it.

    Raises:
        FingerprintError: the state on disk belongs to another configuration.
    """
    trained = _method(method, method_settings)
    fingerprint, overwrite = fingerprint_of(inputs, trained), inputs.settings.overwrite
    # A state of another configuration is refused here.
    read_matching_progress(inputs.state(method), fingerprint, overwrite=overwrite)
    tags = {"dataset": dataset, "method": method, "variant": variant, "seed": str(inputs.seed)}
    tags["data_hash"] = inputs.data_hash
    if inputs.rows:
        tags["rows"] = inputs.rows
    run_id = _find_or_open_run(
        fingerprint,
        inputs.resume / "run.json",
        f"{dataset}-{method}-{variant}-seed{inputs.seed}",
        tags,
    )
    params = {**tags, "model": plain(inputs.model), "training": plain(inputs.settings)}
    params |= {method: trained.configuration, "compute": inputs.compute.facts()}
    if counterfactuals_report["edits"]:
        params["counterfactuals"] = counterfactuals_report
    reason = no_control(trained, wanted=control)
    with tracking.store_errors():
        record = RunLog(tracking.find_or_restore(run_id).info.run_id)
        record.params(params)
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
        "options": command.record(),
    }


def train_models(
    inputs: TrainingInputs,
    run: Mapping[str, Any],
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    method: str,
    method_settings: Mapping[str, Any],
    selecting: BenchmarksSettings,
    benchmarks: BenchmarksSettings,
) -> tuple[Path, Path | dict[str, str], dict[str, Progress]]:
    """Train the method and its control.

    Returns the folders of their checkpoints, and progress.

    Both are trained together: processes of several hosts meet once. In place of a control there may
    be a file with the reason for none. The ratio that `selecting` chooses for the method is the
    control's too.
    """
    ratio_items = _ratio_items(inputs, valid_captions, foils, selecting, benchmarks)
    trained = _method(method, method_settings)
    own, control = (inputs.resume / f"{name}_checkpoint" for name in (method, CONTROL))
    jobs = jobs_of(trained, own, control, control=run["control_run_id"] is not None)
    run_ids = {method: run["run_id"], CONTROL: run["control_run_id"]}
    curves = LiveCurves(CURVES)
    with ExitStack() as opened:
        records = {
            job.name: opened.enter_context(tracking.adopt(run_ids[job.name], adopted_later=True))
            for job in jobs
        }

        def report(name: str, point: Mapping[str, float]) -> None:
            curves.add(records[name], [point])

        several = launch.processes(inputs.settings.distributed) > 1
        progress = (launch.train if several else train_jobs)(inputs, jobs, report)
        if ratio_items:
            device = inputs.settings.device
            ratio, figures = choose_ratio(ratio_items, inputs.model, own, device)
            chosen = {"ratio": ratio, "figures": figures.to_dict("records")}
            with tracking.store_errors():
                records[method].document(chosen, RATIOS)
            if ratio < 1:
                for job in jobs:
                    mix(inputs.model, job.folder, ratio)
    if CONTROL in records:
        return own, control, progress
    return own, {NO_CONTROL: json.dumps({"reason": run["no_control"]})}, progress


def log_training(
    run: Mapping[str, Any],
    progress: Mapping[str, Progress],
    views_preview: Path,
) -> pd.DataFrame:
    """Log the views' page, counts and missing points of curves.

    Returns all curves as a table.
    """
    for name, done in progress.items():
        run_id = run["control_run_id"] if name == CONTROL else run["run_id"]
        with tracking.adopt(run_id) as record, tracking.store_errors():
            record.missing_curves(done.curve, CURVES)
            record.document(dict(done.counts), "batches.json")
            if name != CONTROL:
                record.artefact(views_preview, "views")
    curves = [pd.DataFrame(done.curve).assign(model=name) for name, done in progress.items()]
    table = pd.concat(curves, ignore_index=True)
    return table[sorted(table.columns, key=lambda name: str(name).startswith(PREFIX))]


def _method(method: str, settings: Mapping[str, Any]) -> Method:
    return registry.build(method, settings["views"], settings["objective"])


def _ratio_items(
    inputs: TrainingInputs,
    valid_captions: Sequence[Caption],
    foils: Sequence[Foil],
    selecting: BenchmarksSettings,
    benchmarks: BenchmarksSettings,
) -> Sequence[Subtask]:
    """Held-out items that choose the WiSE-FT ratio, empty if the ratio is configured.

    Raises:
        SettingsError: they are missing, not of composition, official or among the reported ones.
    """
    if inputs.settings.wise_ft.ratio != "auto":
        return []
    workers = EvaluationSettings().workers
    items = study_items(selecting, benchmarks, valid_captions, inputs.root, workers, foils)
    if not any(BENCHMARKS[task.benchmark].role == COMPOSITION for task in items):
        raise SettingsError(
            f"training.wise_ft.ratio: auto needs items of composition at {TUNED}, or give a number"
        )
    return items


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
