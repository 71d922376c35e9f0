"""The attention of a run's models, as a table and for the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.attention import Grid, Look, looks, through
from compo_pipeline.evaluation.comparison import BASE, ROLES
from compo_pipeline.evaluation.localisation import Located, located, measure
from compo_pipeline.evaluation.regions import Case
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import Limits, load
from compo_pipeline.models.encoding import scale_of
from compo_pipeline.models.loading import LoadedModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Panel:
    """One phrase in one picture, under the base and after fine-tuning.

    Attributes:
        phrase: what was asked.
        picture: its file.
        pixels: [H, H, 3] in 0..1, the picture as the models see it; H is a multiple of G.
        base: attention [G, G] in times uniform; so is `fine_tuned`.
        region: [H, H] in 0..1, where the named thing is; None where that is not known.
        rows: the measured row of each of the two models.
    """

    phrase: str
    picture: str
    pixels: NDArray[np.floating]
    base: Grid
    fine_tuned: Grid
    region: Grid | None
    rows: tuple[Located, Located]


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
        limits: what is accepted as a picture.

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


def panels(
    base: LoadedModel, tuned: LoadedModel, cases: Sequence[Case], limits: Limits
) -> list[Panel]:
    """What is drawn of some cases; those whose picture cannot be read are left out.

    Raises:
        SettingsError: the two models do not see the same patches.
    """
    towers = [loaded.config["model_cfg"]["vision_cfg"] for loaded in (base, tuned)]
    if towers[0] != towers[1]:
        raise SettingsError(
            f"model: '{base.name}' and the checkpoint '{tuned.name}' have other image towers; set "
            "model.name and model.pretrained as they were in its training"
        )
    before, after = (list(looks(loaded, cases, 16, 1, limits)) for loaded in (base, tuned))
    found = (_panel(base, *pair, limits) for pair in zip(before, after, strict=True))
    return [panel for panel in found if panel is not None]


def _panel(base: LoadedModel, before: Look, after: Look, limits: Limits) -> Panel | None:
    if before.attention is None or after.attention is None:
        return None
    case, plain = before.case, before.attention.plain
    pixels = base.preprocess(load(case.root, case.picture, limits)).numpy().transpose(1, 2, 0)
    shown = (pixels * np.array(base.std) + np.array(base.mean)).clip(0, 1)
    region = None if before.covered is None or case.region is None else case.region.mask()
    # Pixels at the edge that the last patches do not reach are left out.
    edge = len(plain) * (len(shown) // len(plain))
    return Panel(
        phrase=case.phrase,
        picture=case.picture,
        pixels=shown[:edge, :edge],
        base=plain.size * plain,
        fine_tuned=plain.size * after.attention.plain,
        region=None if region is None else through(base, region)[:edge, :edge],
        rows=(measure(before), measure(after)),
    )
