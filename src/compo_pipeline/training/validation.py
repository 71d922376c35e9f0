"""Validation during training: a loss and a figure on held-out rows, and decisions by them.

The loss is that of plain fine-tuning, whatever the method: the control's, on each image with its
first sentence. Negatives, composites and counterfactuals exist for the training split alone, so a
method's own loss has no held-out rows; this one compares methods, controls and the base.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.compute import moved
from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError, nearest
from compo_pipeline.core.tables import Splits, split_rows, splits_of
from compo_pipeline.methods.clip import control_of
from compo_pipeline.methods.contract import Example, Method
from compo_pipeline.methods.views import single_view
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.training.checkpoint import Point
from compo_pipeline.training.encoder import ModelEncoder
from compo_pipeline.training.features import Features
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.preprocessing import ModelPreprocessor
from compo_pipeline.training.settings import TrainingSettings, ValidationSettings

KEY = "training.validation"
# Names in the curves.
PREFIX = "val/"
LOSS = f"{PREFIX}contrastive_loss"


def check_split(settings: ValidationSettings, trains: Splits, reported: BenchmarksSettings) -> None:
    """Raise an error if the validation split is also trained on, or reported on.

    Args:
        settings: settings of validation.
        trains: split that trains, or several.
        reported: benchmarks of the final evaluation.

    Raises:
        SettingsError: it is one of these.
    """
    taken: dict[str | None, str] = {
        **dict.fromkeys(splits_of(trains), "trains (views.split)"),
        reported.retrieval.split: "is reported on (benchmarks.retrieval.split)",
        reported.foils.split: "is reported on (benchmarks.foils.split)",
    }
    if settings.split in taken:
        raise SettingsError(
            f"{KEY}.split: expected a split of its own, got '{settings.split}', which "
            f"{taken[settings.split]}"
        )


def held_out_rows(settings: ValidationSettings, captions: Sequence[Caption]) -> list[Caption]:
    """Caption rows that a training is validated on: one for each image of the split.

    Of more images than `rows` that many are drawn.

    Raises:
        SettingsError: the split has no two images.
    """
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
    return rng("validation rows").sample(list(first.values()), count)


class Validator:
    """Measures the loss, and the configured metric, of a model on held-out rows.

    Args:
        inputs: held-out rows and items, and the recipe.
        method: method that trains. Plain fine-tuning of the same towers is measured.
        loaded: model that trains.
        features: features of all images. None reads images, without random crops.
    """

    def __init__(
        self, inputs: TrainingInputs, method: Method, loaded: LoadedModel, features: Features | None
    ) -> None:
        data, settings, plain = inputs.held_out, inputs.settings, control_of(method)
        preprocessor = ModelPreprocessor(loaded, inputs.root, features.rows if features else None)
        views = (single_view(row, row.sentences[:1], (), "") for row in data.rows)
        examples: Any = [*map(Example, data.rows, views)]
        self.batches = DataLoader(
            examples,
            min(settings.batch_size, len(data.rows)),
            drop_last=True,
            collate_fn=partial(plain.collate, step=0, preprocessor=preprocessor),
            num_workers=0 if features else settings.workers,
        )
        self.plain, self.measure, self.figure = plain, data.measure, settings.validation.figure

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
        if self.figure is not None and self.measure is not None:
            figures = self.measure(model)
            refuse_unknown_metric(self.figure, figures)
            point[f"{PREFIX}{self.figure}"] = figures[self.figure]
        return point


def refuse_unknown_metric(name: str, figures: Collection[str]) -> None:
    """Raise an error if the validation items give no metric of the configured name.

    Raises:
        SettingsError: names the nearest one.
    """
    if name not in figures:
        raise SettingsError(
            f"{KEY}.figure: '{name}' is no figure of the validation items"
            f"{nearest(name, figures)} (there are: {', '.join(figures)})"
        )


def deciding_figure(settings: TrainingSettings) -> tuple[str, bool]:
    """Name, in the curve, of the values that decide, and whether higher ones are better."""
    figure = settings.validation.figure
    return (LOSS, False) if figure is None else (f"{PREFIX}{figure}", True)


def best_point(curve: Sequence[Point], settings: TrainingSettings) -> Point:
    """The first of the best validated points of the curve, without the base model's point."""
    return max(_scores(curve, settings), key=lambda one: one[0])[1]


def stops_early(curve: Sequence[Point], settings: TrainingSettings) -> bool:
    """Whether training stops early: no better value for `patience` validations.

    It follows from the curve alone, so a resumed run decides the same.
    """
    stopping, reference, waited = settings.early_stopping, float("-inf"), 0
    for score, _ in _scores(curve, settings):
        if score > reference + stopping.min_delta:
            reference, waited = score, 0
        else:
            waited += 1
    return stopping.patience is not None and waited >= stopping.patience


def _scores(curve: Sequence[Point], settings: TrainingSettings) -> list[tuple[float, Point]]:
    """Deciding value, negated if lower is better, of each validated point of the curve."""
    name, higher = deciding_figure(settings)
    validated = (point for point in curve if point["step"] and name in point)
    return [(point[name] if higher else -point[name], point) for point in validated]
