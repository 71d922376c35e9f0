"""A whole training: base model in, exported checkpoint of a method or its control out."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from compo_pipeline.images.decoding import ACCEPTED
from compo_pipeline.methods.clip import Clip, ClipObjective, Siglip, SiglipObjective
from compo_pipeline.methods.contract import ImageInput, Method, NoViewSettings
from compo_pipeline.models.encoding import MOST_SCALE, scale_of
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import LoadedModel, give_bias, load
from compo_pipeline.models.weights import interpolate
from compo_pipeline.run.compute import resolve
from compo_pipeline.storage.hashing import file_hash, hash_of
from compo_pipeline.training import fingerprint
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.checkpoint import Point, Progress
from compo_pipeline.training.feature_source import FeatureSource
from compo_pipeline.training.features import Features
from compo_pipeline.training.fingerprint import refuse_differing
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.loop import Training
from compo_pipeline.training.optimisation import speed_up
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.ranks import ALONE, Ranks
from compo_pipeline.training.validation import Selection, Validator

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
    """Reason why no control is trained beside a method; None if a control is trained."""
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
    """Of the state file, and in logs (`clic`, `control`)."""

    folder: Path
    """Where the checkpoint goes."""


def jobs_of(
    method: Method, checkpoint: Path, control_checkpoint: Path, *, control: bool
) -> list[Job]:
    """The training jobs of a method and, if wanted, of its control.

    Args:
        method: the method.
        checkpoint: folder of the method's checkpoint.
        control_checkpoint: that of the control's.
        control: whether a control is wanted.
    """
    jobs = [Job(method, method.name, checkpoint)]
    if no_control(method, wanted=control) is None:
        jobs.append(Job(control_of(method), CONTROL, control_checkpoint))
    return jobs


def train_jobs(
    trainer: Trainer, jobs: Sequence[Job], report: Callable[[str, Point], None]
) -> dict[str, Progress]:
    """Train the jobs one after another; returns the progress of each by name.

    Of a method that stopped early the control takes as many steps.

    Args:
        trainer: of all of them.
        jobs: the method, and the control where there is one.
        report: called with a job's name and each new point of its curves.
    """
    stops = trainer.inputs.settings.early_stopping.patience is not None
    done: dict[str, Progress] = {}
    for job in jobs:
        steps = done[jobs[0].name].step if done and stops else None
        own = partial(report, job.name)
        done[job.name] = trainer.train(job.method, job.name, job.folder, own, steps=steps)
    return done


class Trainer:
    """Trains and exports models on the same inputs; embeds an image once for all of them.

    Args:
        inputs: data, base model and recipe.
        ranks: processes that train together; the first one alone writes.
    """

    def __init__(self, inputs: TrainingInputs, ranks: Ranks = ALONE) -> None:
        self.inputs, self.ranks = inputs, ranks
        self.compute = resolve(inputs.settings.device, inputs.settings.precision, key="training")

    @property
    def device(self) -> torch.device:
        """The device on which models are trained."""
        return self.compute.device

    def train(
        self,
        method: Method,
        name: str,
        folder: Path,
        report: Callable[[Point], None],
        eval_callback: Callable[[int, LoadedModel], None] | None = None,
        steps: int | None = None,
    ) -> Progress:
        """Train the base model with a method, and export the checkpoint.

        Args:
            method: the method, or the control of one.
            name: of the state file, and in logs (`clic`, `control`).
            folder: the checkpoint goes here.
            report: called with every new point of the curves.
            eval_callback: called with the step and the model, in eval mode, whenever its state has
                been saved; an exception of it ends the training.
            steps: number of steps, by the schedule of all; a control takes as many as a method that
                stopped early.

        Raises:
            TrainingError: a loss is not finite.
            FingerprintError: the state on disk belongs to another configuration, or a process has
                another one than the first.
            SettingsError: the processes cannot share a batch.
        """
        settings, ranks = self.inputs.settings, self.ranks
        run_fingerprint = self.fingerprint(method, steps)
        refuse_differing(ranks.gather_json([socket.gethostname(), run_fingerprint]))
        loaded = self._load_base(method)
        preprocessor = self._preprocessor(loaded)
        batches = self.batches(method, preprocessor)
        ranks.refuse_uneven(batches.batch_size, settings.contrast_group)
        features = None
        if self._feature_source.serves(method, loaded) and not ranks.from_first(
            lambda: self._is_finished(name, run_fingerprint)
        ):
            features = self._features_of_run(method, loaded, batches, preprocessor)
            preprocessor.rows = features.rows
        if settings.lora.rank is not None:
            from compo_pipeline.models import lora  # it imports transformers: seconds

            adapters = settings.lora.rank, loaded.name, method.trains, self.inputs.seed
            lora.attach(loaded.model, *adapters, settings.lora.convolution)
        speed_up(loaded.model, settings, self.device)
        if ranks.first:
            rows = filter(None, [f"{len(self.inputs.captions):,} rows", self.inputs.rows])
            size = f"batches of {batches.batch_size:,}, epochs: {settings.epochs}"
            log.info("%s: %s; %s steps (%s)", name, ", ".join(rows), f"{len(batches):,}", size)
        progress = Training(
            loaded,
            method,
            batches,
            features,
            settings,
            self.compute,
            self._state_file(name),
            run_fingerprint,
            report,
            eval_callback,
            self._validator(method, loaded, features) if ranks.first else None,
            steps,
            ranks,
        ).run()
        if ranks.first:
            outcome = self._outcome(progress, len(batches))
            counts = [f"{what} {count}" for what, count in progress.counts.items() if count]
            log.info("%s: %s; %s", name, _summary(outcome), ", ".join(counts))
            if settings.lora.rank is not None:
                lora.merge(loaded.model)
            record = {"fingerprint": run_fingerprint, "counts": dict(progress.counts), **outcome}
            self._export(method, loaded, record, folder)
        return progress

    def _export(
        self, method: Method, loaded: LoadedModel, record: Mapping[str, Any], folder: Path
    ) -> None:
        """Export a trained model, interpolated with its base if the settings say so (WiSE-FT)."""
        ratio = self.inputs.settings.wise_ft.before_choice
        if ratio < 1:
            base, tuned = self._load_base(method).model.state_dict(), loaded.model.state_dict()
            loaded.model.load_state_dict(interpolate(base, tuned, ratio))
        facts = {"method": method.name, "wise_ft_ratio": ratio, "compute": self.compute.facts()}
        export(loaded, folder, metadata={"training": {**facts, **record}})

    def fingerprint(self, method: Method, steps: int | None = None) -> dict[str, Any]:
        """Settings, seed and input hashes that determine a training's weights, as a dictionary."""
        inputs = self.inputs
        found = fingerprint.run_fingerprint(
            method, inputs.settings, self.compute, inputs.seed, self._inputs_fingerprints
        )
        return found if steps is None else {**found, "steps": steps}

    def steps_done(self, method: Method, name: str) -> int:
        """Number of steps that an earlier run of the same configuration has done.

        Raises:
            FingerprintError: the state on disk belongs to another configuration.
        """
        progress = self._saved_progress(name, self.fingerprint(method))
        return progress.step if progress else 0

    def store_features(self, method: Method) -> None:
        """Embed and store the images that a method shows, for later trainings to read.

        They go to the inputs' `features`; nothing is done where the image tower trains.
        """
        loaded = self._load_base(method)
        if self._feature_source.serves(method, loaded):
            preprocessor = self._preprocessor(loaded)
            self._features_of_run(method, loaded, self.batches(method, preprocessor), preprocessor)

    def _features_of_run(
        self, method: Method, loaded: LoadedModel, batches: Batches, preprocessor: ModelPreprocessor
    ) -> Features:
        """Features of all images that a training shows, including held-out ones for validation."""
        validates = self.inputs.settings.validation.every is not None
        held_out = self.inputs.held_out.rows if validates else ()
        images = batches.images([ImageInput((row.image,)) for row in held_out])
        return self._feature_source.features_of(images, method, loaded, preprocessor)

    @cached_property
    def _inputs_fingerprints(self) -> dict[str, str]:
        """Hashes of data, views and base model, and of held-out rows if they select weights."""
        views = sorted(self.inputs.views.glob("*.parquet"))
        found = {
            "data": self.inputs.data_hash,
            "views": hash_of([(file.name, file_hash(file)) for file in views]),
            "model": load(self.inputs.model).fingerprint,
        }
        if self.inputs.settings.selects:
            found["validation"] = self.inputs.held_out.fingerprint
        return found

    @cached_property
    def _feature_source(self) -> FeatureSource:
        """The feature source that a method and its control share."""
        return FeatureSource(self.inputs, self.compute, self.ranks)

    def _state_file(self, name: str) -> Path:
        """Path of the file with a training's state."""
        return self.inputs.resume / f"{name}.safetensors"

    def _saved_progress(self, name: str, run_fingerprint: Mapping[str, Any]) -> Progress | None:
        """Progress of an earlier run with the same fingerprint; None if there was none."""
        overwrite = self.inputs.settings.overwrite
        saved = fingerprint.read_matching_progress(
            self._state_file(name), run_fingerprint, overwrite=overwrite
        )
        return Progress.from_dict(saved["progress"]) if saved else None

    def _is_finished(self, name: str, run_fingerprint: Mapping[str, Any]) -> bool:
        """Whether an earlier run with the same fingerprint has finished the training."""
        progress = self._saved_progress(name, run_fingerprint)
        return progress is not None and progress.finished

    def _load_base(self, method: Method) -> LoadedModel:
        """Load the base model, with a logit_bias if the method needs one."""
        loaded = load(self.inputs.model, self.device)
        scale = scale_of(loaded.model).item()
        if scale > MOST_SCALE:
            text = "%s: its scale of %.1f is cut to %g with the first step."
            log.warning(text, loaded.name, scale, MOST_SCALE)
        return loaded if method.bias is None else give_bias(loaded, method.bias)

    def _preprocessor(self, loaded: LoadedModel) -> ModelPreprocessor:
        """The preprocessor of images and texts for training, with the configured crops."""
        return ModelPreprocessor(
            loaded,
            self.inputs.root,
            limits=ACCEPTED,
            crop_scale=self.inputs.settings.crop_scale,
            counterfactual_images=self.inputs.counterfactual_images,
        )

    def batches(self, method: Method, preprocessor: ModelPreprocessor) -> Batches:
        """The dataset of a method's batches at all steps."""
        settings = self.inputs.settings
        return Batches(
            self.inputs.captions,
            self.inputs.views,
            method,
            preprocessor,
            batch_size=settings.batch_size,
            epochs=settings.epochs,
            seed=self.inputs.seed,
            max_steps=settings.max_steps,
            group=settings.contrast_group,
            curriculum=settings.curriculum,
        )

    def _validator(
        self, method: Method, loaded: LoadedModel, features: Features | None
    ) -> Validator | None:
        """The validator that measures the model during training; None without validation."""
        inputs = self.inputs
        if inputs.settings.validation.every is None:
            return None
        if not inputs.held_out.rows:
            raise ValueError("the recipe validates, and there are no held-out rows")
        rows = features.rows if features else None
        preprocessor = ModelPreprocessor(loaded, inputs.root, rows, ACCEPTED)
        workers = 0 if features else inputs.settings.workers
        control = control_of(method)
        return Validator(inputs.held_out, control, preprocessor, inputs.settings, workers)

    def _outcome(self, progress: Progress, planned: int) -> dict[str, Any]:
        """Number of steps, and which step's weights are exported, as a JSON-ready dictionary."""
        selection = Selection.from_settings(self.inputs.settings)
        selected: dict[str, Any] = {"rule": "last", "step": progress.step}
        if selection.keeps_best:
            best = selection.best(progress.curve)
            selected = {
                "rule": "best",
                "step": int(best["step"]),
                "by": selection.name,
                "value": best[selection.name],
                "base": progress.curve[0][selection.name],
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
