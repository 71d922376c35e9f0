"""Nodes of the training pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import parse
from compo_pipeline.records import Caption

if TYPE_CHECKING:
    import pandas as pd

    from compo_pipeline.methods.contract import Method
    from compo_pipeline.registry.tracking import RunLog

NO_CONTROL = "no_control.json"


def train_model(
    valid_captions: list[Caption],
    views: Path,
    counterfactual_images: Path,
    counterfactuals_report: Mapping[str, Any],
    manifest: Mapping[str, Any],
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    benchmarks: Mapping[str, Any],
    control: bool,
    split: str,
    root: str,
    seed: int,
    dataset: str,
    variant: str,
    paths: Mapping[str, str],
    method: str,
    method_settings: Mapping[str, Any],
) -> tuple[Path, Path, dict[str, Any], pd.DataFrame]:
    """The method's checkpoint, its control's, the record of the run, and the curves.

    In MLflow the control has a run within the method's, so that the curves of both share names
    and charts.
    """
    import pandas as pd

    from compo_pipeline.datasets.splits import training_rows
    from compo_pipeline.evaluation.settings import BenchmarksSettings
    from compo_pipeline.methods.registry import build, label
    from compo_pipeline.models.loading import ModelSettings
    from compo_pipeline.registry import tracking
    from compo_pipeline.training.run import Plan, Runner, control_of
    from compo_pipeline.training.settings import TrainingSettings
    from compo_pipeline.training.validation import PREFIX, held_out

    trained = build(method, method_settings["views"], method_settings["objective"])
    recipe = parse(TrainingSettings, training, "training")
    reported = parse(BenchmarksSettings, benchmarks, "benchmarks")
    plan = Plan(
        captions=training_rows(valid_captions, split),
        data=str(manifest["data_hash"]),
        views=views,
        root=Path(root),
        model=parse(ModelSettings, model, "model"),
        settings=recipe,
        seed=seed,
        resume=Path(paths["resume"]),
        made=counterfactual_images,
        held_out=held_out(recipe.validation, valid_captions, Path(root), split, reported),
    )
    runner = Runner(plan)
    runner.done(trained, method)  # a state of another configuration is refused before a run opens
    tags = {"dataset": dataset, "method": method, "variant": variant, "seed": str(seed)}
    tags["data_hash"] = plan.data
    run_name = f"{dataset}-{method}-{variant}-seed{seed}"
    run_id = _run_of(runner.mark(trained), plan.resume, run_name, tags)
    folders = {method: Path(paths["checkpoint"]), "control": Path(paths["control_checkpoint"])}
    # The control trains as long as a method that stopped early, by the same schedule.
    curves, steps = [], None
    with tracking.adopt(run_id) as record:
        settings = {"model": model, "training": training, method: method_settings}
        if counterfactuals_report["edits"]:
            settings["counterfactuals"] = counterfactuals_report
        record.params({**tags, **settings, "compute": runner.compute.facts()})
        for name, learner in ((method, trained), ("control", control_of(trained))):
            if name == "control" and (reason := _no_control(trained, control)):
                _mark_absent(folders[name], reason)
                continue
            inside: AbstractContextManager[RunLog] = nullcontext(record)
            if name == "control":
                inside = tracking.adopt(tracking.child_run(record.run_id, name))
            with inside as own:
                report = partial(_log, own, learner)
                progress = runner.train(learner, name, folders[name], report, steps=steps)
                own.document(dict(progress.counts), "batches.json")
            if recipe.early_stopping.patience is not None:
                steps = progress.step
            curves.append(pd.DataFrame(progress.curve).assign(model=name))
        run = {"run_id": record.run_id, "method": method, "label": label(method)}
        run |= {"variant": variant, "seed": seed}
    table = pd.concat(curves, ignore_index=True)
    table = table[sorted(table.columns, key=lambda name: str(name).startswith(PREFIX))]
    return folders[method], folders["control"], run, table


def log_views_preview(views_preview: Path, run: Mapping[str, Any]) -> None:
    """Log the HTML page of views with the MLflow run."""
    from compo_pipeline.registry import tracking

    with tracking.adopt(run["run_id"]) as record:
        record.artefact(views_preview, "views")


def _log(record: RunLog, learner: Method, point: Mapping[str, float]) -> None:
    """Add a point to the curves; a scale that is not trained is none."""
    constant = () if learner.trains_scale else ("scale",)
    record.curves([{name: value for name, value in point.items() if name not in constant}], "train")


def _run_of(mark: Mapping[str, Any], resume: Path, name: str, tags: Mapping[str, str]) -> str:
    """The MLflow run of this very training where one was opened before, else a new one.

    A training that was interrupted, or is asked for again, logs where it began.
    """
    from compo_pipeline.registry import tracking

    note = resume / "run.json"
    if note.exists():
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["fingerprint"] == mark:
            return str(known["run_id"])
    run_id = tracking.open_run(name, tags)
    resume.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"run_id": run_id, "fingerprint": mark}), encoding="utf-8")
    return run_id


def _no_control(method: Method, wanted: bool) -> str | None:
    """Why there is no control beside a method."""
    from compo_pipeline.training.run import control_of

    if not wanted:
        return "evaluation.control is off"
    # Plain fine-tuning would stand beside itself.
    return f"'{method.name}' is its own control" if control_of(method).name == method.name else None


def _mark_absent(folder: Path, reason: str) -> None:
    """Say in the control's place why there is none; one of an earlier run must not stand there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NO_CONTROL).write_text(json.dumps({"reason": reason}))
