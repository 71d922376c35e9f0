"""A whole training: base model in, exported checkpoint of a method or its control out."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compo_pipeline.data.images.decoding import ACCEPTED
from compo_pipeline.methods.clip import Clip, ClipObjective, Siglip, SiglipObjective
from compo_pipeline.methods.contract import ImageInput, Method, NoViewSettings
from compo_pipeline.models.encoding import MOST_SCALE, scale_of
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.weights import interpolate
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.features import Features, features_of, trains_on_features
from compo_pipeline.training.fingerprint import (
    fingerprint_of,
    read_matching_progress,
    refuse_differing,
)
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import fit
from compo_pipeline.training.optimisation import speed_up
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import Validator, best_point, deciding_figure

# Name of the control's state file, of its curves and in logs.
CONTROL = "control"

log = logging.getLogger(__name__)


def control_of(method: Method) -> Clip:
    """The control of a method: plain CLIP or SigLIP fine-tuning of the same weights.

    Plain CLIP, or plain SigLIP for a method with a logit_bias. It runs as many steps as the method,
    over the same rows, at the same batch size and rate; its loss is also what validation measures.
    """
    trains = tuple(sorted(method.trains))
    if method.bias is None:
        return Clip(NoViewSettings(), ClipObjective(trains, method.trains_scale))
    return Siglip(NoViewSettings(), SiglipObjective(trains, method.trains_scale, method.bias))


def no_control(method: Method, *, wanted: bool) -> str | None:
    """Reason why no control is trained beside a method, or None if a control is trained."""
    if not wanted:
        return "evaluation.control is off"
    # Plain fine-tuning would be compared with itself.
    return f"'{method.name}' is its own control" if control_of(method).name == method.name else None


@dataclass(frozen=True)
class Job:
    """One model to train: its method, name and checkpoint folder."""

    method: Method
    """The method, or the control of one."""

    name: str
    """Name of the state file, also in logs (`clic`, `control`)."""

    folder: Path
    """Folder of the checkpoint."""


def jobs_of(
    method: Method, checkpoint: Path, control_checkpoint: Path, *, control: bool
) -> list[Job]:
    """The training jobs of a method and, if wanted, of its control.

    Args:
        method: the method.
        checkpoint: folder of the method's checkpoint.
        control_checkpoint: folder of the control's checkpoint.
        control: whether a control is wanted.
    """
    jobs = [Job(method, method.name, checkpoint)]
    if no_control(method, wanted=control) is None:
        jobs.append(Job(control_of(method), CONTROL, control_checkpoint))
    return jobs


def train_jobs(
    inputs: TrainingInputs,
    jobs: Sequence[Job],
    report: Callable[[str, Point], None],
    ranks: Ranks = ALONE,
) -> dict[str, Progress]:
    """Train the jobs one after another, and return the progress of each by name.

    Of a method that stopped early the control takes as many steps.

    Args:
        inputs: inputs of all jobs.
        jobs: the method, and the control where there is one.
        report: called with a job's name and each new point of its curves.
        ranks: processes that train together. Only the first one writes.
    """
    stops = inputs.settings.early_stopping.patience is not None
    done: dict[str, Progress] = {}
    for job in jobs:
        steps = done[jobs[0].name].step if done and stops else None
        done[job.name] = train(inputs, job, partial(report, job.name), steps=steps, ranks=ranks)
    return done


def train(
    inputs: TrainingInputs,
    job: Job,
    report: Callable[[Point], None],
    on_save: Callable[[int, LoadedModel], None] | None = None,
    *,
    steps: int | None = None,
    ranks: Ranks = ALONE,
) -> Progress:
    """Train the base model with a method, and export the checkpoint.

    Args:
        inputs: data, base model and recipe.
        job: the method, and the folder of the checkpoint.
        report: called with every new point of the curves.
        on_save: called with the step and the model, in eval mode, whenever its state has been
            saved; an exception of it ends the training.
        steps: number of steps, by the schedule of all; a control takes as many as a method that
            stopped early.
        ranks: processes that train together. Only the first one writes.

    Raises:
        TrainingError: a loss is not finite.
        FingerprintError: the state on disk belongs to another configuration, or a process has
            another one than the first.
        SettingsError: the processes cannot share a batch.
    """
    settings, method, compute = inputs.settings, job.method, inputs.compute
    loaded = _load_base(inputs, method)
    fingerprint = fingerprint_of(inputs, method, base=loaded.fingerprint, steps=steps)
    refuse_differing(ranks.gather_values((socket.gethostname(), fingerprint)))
    preprocessor = ModelPreprocessor(
        loaded,
        inputs.root,
        limits=ACCEPTED,
        crop_scale=settings.crop_scale,
        counterfactual_images=inputs.counterfactual_images,
    )
    batches = _batches(inputs, method, preprocessor)
    ranks.refuse_uneven(batches.batch_size, settings.contrast_group)

    def is_finished() -> bool:
        saved = saved_progress(inputs, job.name, fingerprint)
        return saved is not None and saved.finished

    features = None
    if trains_on_features(inputs, method, loaded) and not ranks.from_first(is_finished):
        held_out = inputs.held_out.rows if settings.validation.every is not None else ()
        images = batches.images(ImageInput((row.image,)) for row in held_out)
        features = features_of(images, inputs, method, loaded, preprocessor, ranks)
        preprocessor.rows = features.rows
    if settings.lora.rank is not None:
        from compo_pipeline.models import lora  # it imports transformers: seconds

        adapters = settings.lora.rank, loaded.name, method.trains, inputs.seed
        lora.attach(loaded.model, *adapters, settings.lora.convolution)
    speed_up(loaded.model, settings, compute.device)
    if ranks.first:
        rows = filter(None, [f"{len(inputs.captions):,} rows", inputs.rows])
        size = f"batches of {batches.batch_size:,}, epochs: {settings.epochs}"
        log.info("%s: %s; %s steps (%s)", job.name, ", ".join(rows), f"{len(batches):,}", size)
    progress = fit(
        loaded,
        method,
        batches,
        settings,
        compute,
        _state_file(inputs, job.name),
        fingerprint,
        report,
        features=features,
        validator=_validator(inputs, method, loaded, features) if ranks.first else None,
        on_save=on_save,
        steps=steps,
        ranks=ranks,
    )
    if not ranks.first:
        return progress
    outcome = _outcome(progress, len(batches), settings)
    counts = [f"{what} {count}" for what, count in progress.counts.items() if count]
    log.info("%s: %s; %s", job.name, _summary(outcome), ", ".join(counts))
    if settings.lora.rank is not None:
        lora.merge(loaded.model)
    ratio = settings.wise_ft.before_choice
    if ratio < 1:
        base, tuned = _load_base(inputs, method).model.state_dict(), loaded.model.state_dict()
        loaded.model.load_state_dict(interpolate(base, tuned, ratio))
    record = {
        "method": method.name,
        "wise_ft_ratio": ratio,
        "compute": compute.facts(),
        "fingerprint": fingerprint,
        "counts": dict(progress.counts),
        **outcome,
    }
    export(loaded, job.folder, metadata={"training": record})
    return progress


def saved_progress(
    inputs: TrainingInputs, name: str, fingerprint: Mapping[str, Any]
) -> Progress | None:
    """Progress of an earlier run with the same fingerprint, or None if there was none.

    Raises:
        FingerprintError: the state on disk belongs to another configuration.
    """
    saved = read_matching_progress(
        _state_file(inputs, name), fingerprint, overwrite=inputs.settings.overwrite
    )
    return Progress.from_dict(saved["progress"]) if saved else None


def _state_file(inputs: TrainingInputs, name: str) -> Path:
    """Path of the file with a training's state."""
    return inputs.resume / f"{name}.safetensors"


def _load_base(inputs: TrainingInputs, method: Method) -> LoadedModel:
    """Load the base model, with a logit_bias if the method needs one."""
    loaded = load(inputs.model, inputs.compute.device)
    scale = scale_of(loaded.model).item()
    if scale > MOST_SCALE:
        text = "%s: its scale of %.1f is cut to %g with the first step."
        log.warning(text, loaded.name, scale, MOST_SCALE)
    return loaded if method.bias is None else give_bias(loaded, method.bias)


def _batches(inputs: TrainingInputs, method: Method, preprocessor: ModelPreprocessor) -> Batches:
    """The dataset of a method's batches at all steps."""
    settings = inputs.settings
    return Batches(
        inputs.captions,
        inputs.views,
        method,
        preprocessor,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        seed=inputs.seed,
        max_steps=settings.max_steps,
        group=settings.contrast_group,
        curriculum=settings.curriculum,
    )


def _validator(
    inputs: TrainingInputs, method: Method, loaded: LoadedModel, features: Features | None
) -> Validator | None:
    """The validator that measures the model during training, or None without validation."""
    if inputs.settings.validation.every is None:
        return None
    if not inputs.held_out.rows:
        raise ValueError("the recipe validates, and there are no held-out rows")
    rows = features.rows if features else None
    preprocessor = ModelPreprocessor(loaded, inputs.root, rows, ACCEPTED)
    workers = 0 if features else inputs.settings.workers
    return Validator(inputs.held_out, control_of(method), preprocessor, inputs.settings, workers)


def _outcome(progress: Progress, planned: int, settings: TrainingSettings) -> dict[str, Any]:
    """Number of steps, and which step's weights are exported, as a JSON-ready dictionary."""
    selected: dict[str, Any] = {"rule": "last", "step": progress.step}
    if settings.keep == "best":
        best, (name, _) = best_point(progress.curve, settings), deciding_figure(settings)
        selected = {
            "rule": "best",
            "step": int(best["step"]),
            "by": name,
            "value": best[name],
            "base": progress.curve[0][name],
        }
    return {"steps": progress.step, "planned_steps": planned, "selected": selected}


def _summary(outcome: Mapping[str, Any]) -> str:
    """Text that says how many steps were trained and which weights are exported."""
    steps = f"{outcome['steps']} of {outcome['planned_steps']} steps"
    selected = outcome["selected"]
    if selected["rule"] == "last":
        return steps
    value, base = selected["value"], selected["base"]
    by = f"{selected['by']} {value:.4g}, base {base:.4g}"
    return f"{steps}, weights of step {selected['step']} ({by})"
