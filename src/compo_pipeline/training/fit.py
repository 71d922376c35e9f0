"""Whether a base model has what a training asks of it, told from its architecture alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.methods.contract import Method, Need
from compo_pipeline.models import dense
from compo_pipeline.models.loading import skeleton
from compo_pipeline.models.sources import ModelSource
from compo_pipeline.training.optimisation import freeze, refuse_batch_norm
from compo_pipeline.training.settings import TrainingSettings

_REFUSE: dict[Need, Callable[..., None]] = {
    "patches": dense.refuse_without_patches,
    "tokens": dense.refuse_without_tokens,
    "marked_tokens": partial(dense.refuse_without_tokens, marked=True),
}


def misfits(plan: ModelSource, method: Method, settings: TrainingSettings) -> Iterator[str]:
    """Yield a message for each reason why a base model cannot be trained with these settings.

    No weights are read.

    Args:
        plan: the parts of the base.
        method: that trains it.
        settings: the recipe.
    """
    try:
        model = skeleton(plan)
    except SettingsError as error:
        yield error.message
        return
    for need, otherwise in method.needs.items():
        try:
            _REFUSE[need](model, plan.name, otherwise)
        except SettingsError as error:
            yield f"{error.message} (method: {method.name})"
    processes = settings.distributed.nproc_per_node
    try:
        freeze(model, method.trains, scale=method.trains_scale, frozen=settings.frozen)
        if settings.lora.rank is not None:
            from compo_pipeline.models import lora  # it imports transformers: seconds

            lora.adapter_targets(model, plan.name, method.trains)
        elif settings.microbatch is not None or processes not in (1, "auto"):
            refuse_batch_norm(model)
    except SettingsError as error:
        yield error.message
