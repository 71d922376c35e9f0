"""Nodes of the pipeline `training`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from compo_pipeline.configuration import plain
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.registry import build, label
from compo_pipeline.registry import tracking
from compo_pipeline.registry.run_log import LiveCurves
from compo_pipeline.storage import atomic_folder, read_json_or_none, write_json
from compo_pipeline.training import launch
from compo_pipeline.training.checkpoint import Progress
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import CONTROL, Trainer, jobs_of, no_control
from compo_pipeline.training.validation import PREFIX

NO_CONTROL = "no_control.json"
CURVES = "train"  # prefix of their names in MLflow


def train_model(
    inputs: TrainingInputs,
    counterfactuals_report: Mapping[str, Any],
    method: str,
    method_settings: Mapping[str, Any],
    control: bool,
    dataset: str,
    variant: str,
    checkpoint: str,
    control_checkpoint: str,
) -> tuple[Path, Path, dict[str, Any], pd.DataFrame]:
    """Checkpoints of the method and its control, the record of the run, and the curves.

    In MLflow the control has a run within the method's, so that the curves of both share names
    and charts.
    """
    trained = build(method, method_settings["views"], method_settings["objective"])
    trainer = Trainer(inputs)
    trainer.steps_done(trained, method)  # a state of another configuration is refused here
    tags = {"dataset": dataset, "method": method, "variant": variant, "seed": str(inputs.seed)}
    tags["data_hash"] = inputs.data_hash
    run_id = _find_or_open_run(
        trainer.fingerprint(trained),
        inputs.resume / "run.json",
        f"{dataset}-{method}-{variant}-seed{inputs.seed}",
        tags,
    )
    folder, control_folder = Path(checkpoint), Path(control_checkpoint)
    jobs = jobs_of(trained, folder, control_folder, control=control)
    with tracking.adopt(run_id) as record, ExitStack() as inner:
        params = {**tags, "model": plain(inputs.model), "training": plain(inputs.settings)}
        params |= {method: trained.configuration, "compute": trainer.compute.facts()}
        if counterfactuals_report["edits"]:
            params["counterfactuals"] = counterfactuals_report
        record.params(params)
        records = {method: record}
        if reason := no_control(trained, wanted=control):
            _write_no_control(control_folder, reason)
        else:
            # Opened before training: the store may not answer after it.
            child = tracking.child_run(record.run_id, CONTROL)
            records[CONTROL] = inner.enter_context(tracking.adopt(child))
        methods = {job.name: job.method for job in jobs}
        curves = LiveCurves(CURVES)

        def report(name: str, point: Mapping[str, float]) -> None:
            curves.add(records[name], _logged(methods[name], [point]))

        progress = launch.train(trainer, jobs, report)
        with tracking.store_errors():
            for name, done in progress.items():
                records[name].missing_curves(_logged(methods[name], done.curve), CURVES)
                records[name].document(dict(done.counts), "batches.json")
    run = {
        "run_id": record.run_id,
        "method": method,
        "label": label(method),
        "variant": variant,
        "seed": inputs.seed,
    }
    return folder, control_folder, run, _curves(progress)


def log_views_preview(views_preview: Path, run: Mapping[str, Any]) -> None:
    """Log the HTML page of views with the MLflow run."""
    with tracking.adopt(run["run_id"]) as record:
        record.artefact(views_preview, "views")


def _logged(method: Method, curve: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Points of the curves for a run; a scale that is not trained has none."""
    constant = () if method.trains_scale else ("scale",)
    return [{name: v for name, v in point.items() if name not in constant} for point in curve]


def _curves(progress: Mapping[str, Progress]) -> pd.DataFrame:
    """The curves of all models as one table, validations last."""
    curves = [pd.DataFrame(done.curve).assign(model=name) for name, done in progress.items()]
    table = pd.concat(curves, ignore_index=True)
    return table[sorted(table.columns, key=lambda name: str(name).startswith(PREFIX))]


def _find_or_open_run(
    fingerprint: Mapping[str, Any], note: Path, name: str, tags: Mapping[str, str]
) -> str:
    """The id of the MLflow run in which a training of this fingerprint began, else of a new one.

    A training that was interrupted, or is asked for again, logs where it began.
    """
    known = read_json_or_none(note)
    if known and known["fingerprint"] == fingerprint:
        return str(known["run_id"])
    run_id = tracking.open_run(name, tags)
    write_json(note, {"run_id": run_id, "fingerprint": fingerprint})
    return run_id


def _write_no_control(folder: Path, reason: str) -> None:
    """Replace the control's folder, which may be of an earlier run, by the reason for none."""
    with atomic_folder(folder) as new:
        (new / NO_CONTROL).write_text(json.dumps({"reason": reason}))
