"""The attention of a run's models, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compo_pipeline.analysis.localisation import Located, located
from compo_pipeline.analysis.regions import Case
from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.comparison import BASE, ROLES
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import Limits
from compo_pipeline.models.encoding import scale_of
from compo_pipeline.models.loading import LoadedModel

if TYPE_CHECKING:
    import pandas as pd


def measured(
    models: Mapping[str, Callable[[], LoadedModel]],
    cases: Sequence[Case],
    made: Mapping[str, Any],
    settings: EvaluationSettings,
    limits: Limits,
) -> pd.DataFrame:
    """A row a case and model: the model's role, and the fields of `Located`.

    Args:
        models: loaders by role; one model is held at a time.
        cases: what is asked.
        made: what training noted beside the checkpoint; empty where it is not known.
        settings: batches and threads.
        limits: what is accepted as an image.

    Raises:
        SettingsError: the checkpoint was not fine-tuned from this base.
    """
    import pandas as pd

    parts, scale = [], None
    for role in (role for role in ROLES if role in models):
        loaded = models[role]()
        start = made.get("fingerprint", {}).get("model")
        if role == BASE and start not in (None, loaded.fingerprint):
            raise SettingsError(
                f"model: the checkpoint was fine-tuned from another model than '{loaded.name}'; "
                "set model.name and model.pretrained as they were in its training"
            )
        found = located(
            loaded,
            cases,
            batch=settings.image_batch,
            workers=settings.workers,
            limits=limits,
            scale=scale,
        )
        # The base's, for all: a scale that grew would look like attention that did.
        scale = scale or scale_of(loaded.model).item()
        parts.append(pd.DataFrame(found).assign(model=role))
    return pd.concat(parts, ignore_index=True)


def by_role(frame: pd.DataFrame) -> dict[str, list[Located]]:
    """The rows of each model, of the table of `measured`."""
    found: dict[str, list[Located]] = {}
    for record in frame.to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        row["problem"] = row["problem"] if isinstance(row["problem"], str) else None
        found.setdefault(row.pop("model"), []).append(Located(**row))
    return found
