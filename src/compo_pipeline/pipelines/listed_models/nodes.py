"""Nodes of the part `listed_models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.suite import listed_models
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.compute import choose_device
from compo_pipeline.versions.settings import RegistrationSettings
from compo_pipeline.versions.verification import load_model


def open_listed_models(
    models: str,
    model_lists: Mapping[str, Any],
    registration: RegistrationSettings,
    evaluation: EvaluationSettings,
) -> dict[str, Callable[[], LoadedModel]]:
    """Functions that load the models of the configured list, by name, baseline first."""
    device = choose_device(evaluation.device, key="evaluation.device")
    return {
        name: partial(load_model, each, device, registration.signing)
        for name, each in listed_models(models, model_lists).items()
    }
