"""Validation during training: a loss and a figure on held-out rows, and decisions by them.

The loss is that of plain fine-tuning, whatever the method: the control's, on each image with its
first sentence. Negatives, composites and counterfactuals exist for the training split alone, so a
method's own loss has no held-out rows; this one compares methods, controls and the base.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from compo_pipeline.compute import moved
from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.evaluation import benchmarks
from compo_pipeline.evaluation.benchmarks import Subtask, retrieval
from compo_pipeline.evaluation.contamination import items_fingerprint, without_reported
from compo_pipeline.evaluation.embed import Embedder
from compo_pipeline.evaluation.scoring import model_metrics
from compo_pipeline.evaluation.settings import (
    BenchmarkSet,
    BenchmarksSettings,
    EvaluationSettings,
    RetrievalSettings,
)
from compo_pipeline.methods.contract import Collated, Example, ImageInput, Method, Preprocessor
from compo_pipeline.methods.views import single_view
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.records import Caption
from compo_pipeline.seeding import digest, rng
from compo_pipeline.tables.rows import split_rows
from compo_pipeline.training.checkpoint import Point
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.settings import TrainingSettings, ValidationSettings

KEY = "training.validation"
# Names in the curves.
PREFIX = "val/"
LOSS = f"{PREFIX}contrastive_loss"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """Rows and benchmark items that a training is validated on."""

    rows: list[Caption]
    """Captions of distinct images, in the order in which they form batches."""

    subtasks: Sequence[Subtask] = ()
    """Of the figure's benchmark; none where the loss alone is measured."""

    @property
    def images(self) -> list[ImageInput]:
        """The images of the rows."""
        return [ImageInput((row.image,)) for row in self.rows]

    @property
    def fingerprint(self) -> str:
        """Of the rows, the items, and how the figure averages over them."""
        rows = (f"{row.sample_id} {row.sentences[0]}" for row in self.rows)
        names = dict.fromkeys(task.benchmark for task in self.subtasks)
        averages = (f"{benchmarks.BENCHMARKS[name].averages}" for name in names)
        return f"{digest(items_fingerprint(self.subtasks), *averages, *rows):016x}"


def check_split(settings: ValidationSettings, trains: str, reported: str | None) -> None:
    """Check that nothing trains on the split of validation, and nothing is reported on it.

    Args:
        settings: of validation.
        trains: the split that trains.
        reported: the split of the final evaluation's retrieval.

    Raises:
        SettingsError: it is one of these.
    """
    taken = {trains: "trains (views.split)"}
    if reported is not None:
        taken[reported] = "is reported on (benchmarks.retrieval.split)"
    if settings.split in taken:
        raise SettingsError(
            f"{KEY}.split: expected a split of its own, got '{settings.split}', which "
            f"{taken[settings.split]}"
        )


def held_out(
    settings: ValidationSettings,
    captions: Sequence[Caption],
    root: Path,
    trains: str,
    reported: BenchmarksSettings,
) -> HeldOut | None:
    """The rows and items of validation; None where it is off.

    Args:
        settings: of validation.
        captions: the dataset's, of all splits.
        root: folder of their images.
        trains: the split that trains.
        reported: benchmarks of the final evaluation; no item of them takes part.

    Raises:
        SettingsError: the split trains, is reported or has no two images, or the figure's items
            are missing or among the reported ones.
    """
    if settings.every is None:
        return None
    check_split(settings, trains, reported.retrieval.split)
    held = list(split_rows(captions, settings.split))
    first = {row.image_id: row for row in reversed(held)}
    if len(first) < 2:
        there = ", ".join(sorted({row.split for row in captions}))
        raise SettingsError(
            f"{KEY}.split: expected two images at least, got {len(first)} of the split "
            f"'{settings.split}' (splits: {there}); see data.splits"
        )
    # Rows that follow one another in a table are often alike; batches of training mix them too.
    count = len(first) if settings.rows is None else min(settings.rows, len(first))
    rows = rng("validation rows").sample(list(first.values()), count)
    if settings.figure is None:
        return HeldOut(rows)
    wanted = _items(settings, settings.figure, held, {row.image_id for row in rows}, root)
    scored = benchmarks.gather(reported, captions, root)
    key = f"{KEY}.benchmarks"
    return HeldOut(rows, without_reported(wanted, scored, EvaluationSettings().workers, key))


def benchmark_files(settings: ValidationSettings) -> BenchmarksSettings | None:
    """Files of the benchmark that a figure is of; None where it needs no files."""
    benchmark = (settings.figure or retrieval.NAME).split("/")[0]
    if benchmark == retrieval.NAME:
        return None
    return BenchmarksSettings(
        settings.benchmarks.root,
        settings.benchmarks.images,
        {benchmark: BenchmarkSet()},
        retrieval=RetrievalSettings(None),
        follow_symlinks=settings.benchmarks.follow_symlinks,
    )


def _items(
    settings: ValidationSettings, figure: str, held: list[Caption], images: set[str], root: Path
) -> list[Subtask]:
    """The subtasks of a figure's benchmark."""
    files = benchmark_files(settings)
    if files is not None:
        try:
            return benchmarks.from_files(files)
        except SettingsError as error:
            raise SettingsError(f"{KEY}, for the figure '{figure}': {error.message}") from None
    name = figure.rsplit("/", 1)[1]
    text = next((text for text in retrieval.TEXTS if text == name), None)
    if text is None:
        raise SettingsError(
            f"{KEY}.figure: '{figure}' ends with no text protocol of retrieval "
            f"(there are: {', '.join(retrieval.TEXTS)})"
        )
    chosen = [row for row in held if row.image_id in images]
    return retrieval.load(chosen, root, RetrievalSettings(settings.split, text))


class _HeldOutBatches(Dataset[Collated]):
    """Full batches of the held-out rows; an incomplete one is left out, as in training."""

    def __init__(
        self, rows: Sequence[Caption], size: int, plain: Method, preprocessor: Preprocessor
    ) -> None:
        self.size, self.plain, self.preprocessor = min(size, len(rows)), plain, preprocessor
        self.examples = [
            Example(row, single_view(row, row.sentences[:1], (), provenance="")) for row in rows
        ]

    def __len__(self) -> int:
        return len(self.examples) // self.size

    def __getitem__(self, index: int) -> Collated:
        examples = self.examples[index * self.size : (index + 1) * self.size]
        return self.plain.collate(examples, 0, self.preprocessor)


class Validator:
    """Measures a model on held-out rows.

    Args:
        data: the rows and items.
        plain: the method whose loss is measured, plain fine-tuning.
        preprocessor: of the model that trains, without random crops.
        embedder: of the data's subtasks; models of one image tower share it.
        settings: the recipe.
        workers: processes that read batches.
    """

    def __init__(
        self,
        data: HeldOut,
        plain: Method,
        preprocessor: Preprocessor,
        embedder: Embedder,
        settings: TrainingSettings,
        workers: int,
    ) -> None:
        batches = _HeldOutBatches(data.rows, settings.batch_size, plain, preprocessor)
        self.batches = DataLoader(batches, batch_size=None, num_workers=workers)
        self.plain, self.embedder, self.figure = plain, embedder, settings.validation.figure

    def __call__(self, model: LoadedModel, encoder: ModelEncoder) -> Point:
        """Loss and figure, by their names in the curves, of a model in eval mode.

        Raises:
            SettingsError: the items give no such figure.
        """
        losses = []
        for batch, _ in self.batches:
            terms = self.plain.loss(encoder, moved(batch, encoder.compute.device))
            losses.append(torch.stack([weight * value for value, weight in terms.values()]).sum())
        point = {LOSS: torch.stack(losses).mean().item()}
        if self.figure is not None:
            point[f"{PREFIX}{self.figure}"] = self._figure(self.figure, model)
        return point

    def _figure(self, name: str, model: LoadedModel) -> float:
        figures = model_metrics(self.embedder, model)
        if name not in figures:
            raise SettingsError(
                f"{KEY}.figure: '{name}' is no figure of the validation items"
                f"{nearest(name, figures)} (there are: {', '.join(figures)})"
            )
        return figures[name]


@dataclass(frozen=True)
class Selection:
    """Early stopping and the best step. They follow from the curve alone, so a resumed run decides
    the same.
    """

    name: str
    """Of the deciding values in the curve."""

    higher_is_better: bool

    keeps_best: bool
    """Whether the weights of the best validation are exported."""

    patience: int | None
    """Validations in a row without a better value that end training; None never."""

    min_delta: float
    """By how much a value must beat the best before it, for patience."""

    @classmethod
    def of(cls, settings: TrainingSettings) -> Selection:
        """As a recipe configures it."""
        figure, stopping = settings.validation.figure, settings.early_stopping
        return cls(
            LOSS if figure is None else f"{PREFIX}{figure}",
            higher_is_better=figure is not None,
            keeps_best=settings.keep == "best",
            patience=stopping.patience,
            min_delta=stopping.min_delta,
        )

    def best(self, curve: Sequence[Point]) -> Point:
        """The first of the best validated points, without the base's at step 0."""
        return max(self._validated(curve), key=self._score)

    def stops(self, curve: Sequence[Point]) -> bool:
        """Whether training ends: there was no better value for `patience` validations."""
        reference, waited = float("-inf"), 0
        for point in self._validated(curve):
            if self._score(point) > reference + self.min_delta:
                reference, waited = self._score(point), 0
            else:
                waited += 1
        return self.patience is not None and waited >= self.patience

    def _validated(self, curve: Sequence[Point]) -> list[Point]:
        return [point for point in curve if point["step"] and self.name in point]

    def _score(self, point: Mapping[str, float]) -> float:
        return point[self.name] if self.higher_is_better else -point[self.name]
