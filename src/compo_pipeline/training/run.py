"""A whole run: base model in, trained checkpoint and, where wanted, that of its control out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from compo_pipeline.compute import resolve
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import PILLOW_LIMIT, Limits
from compo_pipeline.methods.clip import Clip, ClipObjective, ClipViews
from compo_pipeline.methods.contract import ImageInput, Method
from compo_pipeline.methods.siglip import Siglip, SiglipObjective
from compo_pipeline.models import lora
from compo_pipeline.models.encoding import MOST_SCALE, scale_of
from compo_pipeline.models.export import export
from compo_pipeline.models.interpolation import interpolate
from compo_pipeline.models.loading import LoadedModel, ModelSettings, load
from compo_pipeline.models.pairwise import give_bias
from compo_pipeline.records import Caption
from compo_pipeline.training import fingerprint
from compo_pipeline.training.batches import Batches
from compo_pipeline.training.feature_store import FeatureStore
from compo_pipeline.training.features import Features, embed
from compo_pipeline.training.loop import train
from compo_pipeline.training.progress import Point, Progress
from compo_pipeline.training.reading import TensorReader
from compo_pipeline.training.settings import TrainingSettings
from compo_pipeline.training.validation import HeldOut, Selection, Validator

log = logging.getLogger(__name__)

# Ingest has measured these images under the configured limits; those it let pass are read.
ADMITTED = Limits(PILLOW_LIMIT, follow_symlinks=True)


@dataclass(frozen=True)
class Plan:
    """What stays the same for a method and its control.

    Attributes:
        captions: the rows that train.
        data: hash of all files of the data.
        views: folder of the rows' views.
        root: folder of their images.
        model: the base.
        settings: the recipe.
        seed: of the order of rows.
        resume: folder of the states to resume from.
        made: folder of the images of counterfactuals, where the views show any.
        features: folder where features of frozen towers are kept for other runs; None keeps none.
        held_out: what is validated on, where the recipe validates.
    """

    captions: list[Caption]
    data: str
    views: Path
    root: Path
    model: ModelSettings
    settings: TrainingSettings
    seed: int
    resume: Path
    made: Path | None = None
    features: Path | None = None
    held_out: HeldOut | None = None

    def batches(self, method: Method, reader: TensorReader) -> Batches:
        """One batch a step of a method."""
        return Batches(
            self.captions,
            self.views,
            method,
            reader,
            batch_size=self.settings.batch_size,
            epochs=self.settings.epochs,
            seed=self.seed,
            max_steps=self.settings.max_steps,
        )


def control_of(method: Method) -> Clip:
    """Plain CLIP that trains the same weights, or plain SigLIP for a method that tells pairs apart
    by a bias. As its control it runs as many steps, over the same rows, at the same batch size
    and rate; its loss is also what validation measures.
    """
    trains = tuple(sorted(method.trains))
    if method.bias is None:
        return Clip(ClipViews(), ClipObjective(trains, method.trains_scale))
    return Siglip(ClipViews(), SiglipObjective(trains, method.trains_scale, method.bias))


class Runner:
    """Trains methods of one plan; images that several show are embedded once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.compute = resolve(plan.settings.device, plan.settings.precision, key="training")
        self._features = Features({}, torch.empty(0, device=self.device))

    @property
    def device(self) -> torch.device:
        """Where models are trained."""
        return self.compute.device

    @cached_property
    def _inputs(self) -> dict[str, str]:
        found = {
            "data": self.plan.data,
            "views": fingerprint.of_folder(self.plan.views),
            "model": load(self.plan.model).fingerprint,
            "code": fingerprint.of_code(),
        }
        if self.plan.settings.selects and self.plan.held_out is not None:
            found["validation"] = self.plan.held_out.fingerprint
            found["validation_code"] = fingerprint.of_code("evaluation")
        return found

    @cached_property
    def _embedder(self) -> Embedder:
        """Scores the validation items; method and control share embeddings of a frozen tower."""
        held_out = self.plan.held_out
        return Embedder(held_out.subtasks if held_out else (), EvaluationSettings())

    def mark(self, method: Method, steps: int | None = None) -> dict[str, Any]:
        """The fingerprint of all that decides what training with a method gives."""
        plan = self.plan
        mark = fingerprint.make(
            method.name, method.objective, plan.settings, self.compute, plan.seed, self._inputs
        )
        return mark if steps is None else {**mark, "steps": steps}

    def done(self, method: Method, name: str) -> int:
        """Steps that an earlier run of this very configuration has done.

        Raises:
            FingerprintError: the state on disk belongs to another configuration.
        """
        progress = self._saved(name, self.mark(method))
        return progress.step if progress else 0

    def _saved(self, name: str, mark: Mapping[str, Any]) -> Progress | None:
        """How far an earlier run of a fingerprint has come; None where there was none."""
        overwrite = self.plan.settings.overwrite
        saved = fingerprint.check(self._state(name), mark, overwrite=overwrite)
        return Progress.from_dict(saved["progress"]) if saved else None

    def _state(self, name: str) -> Path:
        return self.plan.resume / f"{name}.safetensors"

    def train(
        self,
        method: Method,
        name: str,
        folder: Path,
        report: Callable[[Point], None],
        watch: Callable[[int, LoadedModel], None] | None = None,
        steps: int | None = None,
    ) -> Progress:
        """Train the base with a method and export it.

        Args:
            method: what trains.
            name: of the state file, and in logs (`clic`, `control`).
            folder: the checkpoint goes here.
            report: gets every new point of the curves.
            watch: gets the step and the model whenever its state has been saved; what it raises
                ends the training.
            steps: exactly so many are taken, by the schedule of all; a control takes as many as a
                method that stopped early.

        Raises:
            TrainingError: a loss is not finite.
            FingerprintError: the state on disk belongs to another configuration.
        """
        plan = self.plan
        loaded = self._base(method)
        reader = self._reader(loaded)
        batches = plan.batches(method, reader)
        mark = self.mark(method, steps)
        features = None
        if self._embeds(method, name) and not self._finished(name, mark):
            features = self._embedded(loaded, batches, reader, method.reads_patches)
            reader.rows = features.rows
        rank = plan.settings.lora.rank
        if rank is not None:
            adapters = lora.LoraSettings(rank)
            lora.attach(loaded.model, adapters, loaded.name, method.trains, plan.seed)
        progress = train(
            loaded,
            method,
            batches,
            features,
            plan.settings,
            compute=self.compute,
            state=self._state(name),
            fingerprint=mark,
            report=report,
            watch=watch,
            validator=self._validator(method, loaded, features),
            steps=steps,
        )
        outcome = self._outcome(progress, len(batches))
        counts = [f"{what} {count}" for what, count in progress.counts.items() if count]
        log.info("%s: %s; %s", name, _told(outcome), ", ".join(counts))
        if rank is not None:
            lora.merge(loaded.model)
        self._mix_with_base(method, loaded)
        note = {
            "method": method.name,
            "fingerprint": mark,
            "wise_ft_ratio": plan.settings.wise_ft.ratio,
            "counts": dict(progress.counts),
            "compute": self.compute.facts(),
            **outcome,
        }
        export(loaded, folder, metadata={"training": note})
        return progress

    def embed_ahead(self, method: Method) -> None:
        """Embed the images that a method shows and keep them in the plan's `features`, where
        later trainings find them; nothing is done where its image tower trains.
        """
        if self._embeds(method, method.name):
            loaded = self._base(method)
            reader = self._reader(loaded)
            batches = self.plan.batches(method, reader)
            self._embedded(loaded, batches, reader, method.reads_patches)

    def _reader(self, loaded: LoadedModel) -> TensorReader:
        """Reads images and texts as a model takes them."""
        plan = self.plan
        crop = plan.settings.crop_scale
        return TensorReader(loaded, plan.root, limits=ADMITTED, crop_scale=crop, made=plan.made)

    def _base(self, method: Method) -> LoadedModel:
        """The model that a method starts from."""
        loaded = load(self.plan.model, self.device)
        scale = scale_of(loaded.model).item()
        if scale > MOST_SCALE:
            log.warning(
                "%s: its scale of %.1f is cut to %g with the first step.",
                *(loaded.name, scale, MOST_SCALE),
            )
        return loaded if method.bias is None else give_bias(loaded, method.bias)

    def _mix_with_base(self, method: Method, loaded: LoadedModel) -> None:
        """WiSE-FT, where the recipe asks for a mixture."""
        ratio = self.plan.settings.wise_ft.ratio
        if ratio < 1:
            base = self._base(method).model.state_dict()
            loaded.model.load_state_dict(interpolate(base, loaded.model.state_dict(), ratio))

    def _finished(self, name: str, mark: Mapping[str, Any]) -> bool:
        progress = self._saved(name, mark)
        return progress is not None and progress.finished

    def _validator(
        self, method: Method, loaded: LoadedModel, features: Features | None
    ) -> Validator | None:
        """What measures the model while it trains, where the recipe wants it."""
        plan = self.plan
        if plan.settings.validation.every is None:
            return None
        if plan.held_out is None:
            raise ValueError("the recipe validates, and the plan has no held-out rows")
        rows = features.rows if features else None
        reader = TensorReader(loaded, plan.root, rows, ADMITTED)
        workers = 0 if features else plan.settings.workers
        return Validator(
            plan.held_out, control_of(method), reader, self._embedder, plan.settings, workers
        )

    def _outcome(self, progress: Progress, planned: int) -> dict[str, Any]:
        """How many steps were taken and which weights are exported, JSON-ready."""
        selection = Selection.of(self.plan.settings)
        kept: dict[str, Any] = {"rule": "last", "step": progress.step}
        if selection.keeps_best:
            best = selection.best(progress.curve)
            kept = {
                "rule": "best",
                "step": int(best["step"]),
                "by": selection.name,
                "value": best[selection.name],
                "base": progress.curve[0][selection.name],
            }
        return {"steps": progress.step, "planned_steps": planned, "kept": kept}

    def _embeds(self, method: Method, name: str) -> bool:
        """Whether images are embedded beforehand."""
        if not self.plan.settings.cache_features:
            return False
        if "image" in method.trains:
            log.info("%s trains the image tower: images are not embedded beforehand.", name)
            return False
        return True

    def _embedded(
        self, loaded: LoadedModel, batches: Batches, reader: TensorReader, patches: bool
    ) -> Features:
        """Features of all images that a run shows, with their patch tokens where wanted."""
        if patches and self._features.patches is None:
            self._features = Features({}, self._features.values)
        patches = patches or self._features.patches is not None
        images = batches.images()
        if self.plan.settings.validation.every is not None and self.plan.held_out is not None:
            images = list(dict.fromkeys([*images, *self.plan.held_out.images]))
        if self.plan.features is None:
            self._embed(images, loaded, reader, patches)
        elif not self._features.rows.keys() >= set(images):
            how = (self.compute.precision, self.device.type)
            decides = (loaded.image_fingerprint, self.plan.data, *how)
            store = FeatureStore(self.plan.features, decides, patches=patches, device=self.device)
            with store.alone():
                self._features = store.read()
                fresh = self._embed(images, loaded, reader, patches)
                if fresh is not None:
                    store.add(fresh)
        return self._features

    def _embed(
        self, images: list[ImageInput], loaded: LoadedModel, reader: TensorReader, patches: bool
    ) -> Features | None:
        """Embed the images that are not known yet; None where all are."""
        missing = [image for image in images if image not in self._features.rows]
        if not missing:
            return None
        fresh = embed(
            missing,
            loaded,
            reader,
            compute=self.compute,
            workers=self.plan.settings.workers,
            patches=patches,
        )
        self._features = self._features.joined(fresh)
        return fresh


def _told(outcome: Mapping[str, Any]) -> str:
    """Steps and kept weights in words."""
    steps, kept = f"{outcome['steps']} of {outcome['planned_steps']} steps", outcome["kept"]
    if kept["rule"] == "last":
        return steps
    value, base = kept["value"], kept["base"]
    return f"{steps}, weights of step {kept['step']} ({kept['by']} {value:.4g}, base {base:.4g})"
