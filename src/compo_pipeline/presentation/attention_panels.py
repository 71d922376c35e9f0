"""What is drawn of one phrase in one image, under two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.analysis.attention import Grid, Look, looks, through
from compo_pipeline.analysis.localisation import Located, measure
from compo_pipeline.analysis.regions import Case
from compo_pipeline.configuration import SettingsError
from compo_pipeline.images.decoding import Limits, load
from compo_pipeline.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class Panel:
    """One phrase in one image, under the base and after fine-tuning.

    Attributes:
        phrase: what was asked.
        image: its file.
        pixels: [H, H, 3] in 0..1, the image as the models see it; H is a multiple of G.
        base: attention [G, G] in times uniform; so is `fine_tuned`.
        region: [H, H] in 0..1, where the named thing is; None where that is not known.
        rows: the measured row of each of the two models.
        names: what the two models are called.
    """

    phrase: str
    image: str
    pixels: NDArray[np.floating]
    base: Grid
    fine_tuned: Grid
    region: Grid | None
    rows: tuple[Located, Located]
    names: tuple[str, str] = ("base", "fine-tuned")


def panels_of(
    base: LoadedModel, tuned: LoadedModel, cases: Sequence[Case], limits: Limits
) -> list[Panel]:
    """What is drawn of some cases; those whose image cannot be read are left out.

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
    pixels = base.preprocess(load(case.root, case.image, limits)).numpy().transpose(1, 2, 0)
    shown = (pixels * np.array(base.std) + np.array(base.mean)).clip(0, 1)
    region = None if before.covered is None or case.region is None else case.region.mask()
    # Pixels at the edge that the last patches do not reach are left out.
    edge = len(plain) * (len(shown) // len(plain))
    return Panel(
        phrase=case.phrase,
        image=case.image,
        pixels=shown[:edge, :edge],
        base=plain.size * plain,
        fine_tuned=plain.size * after.attention.plain,
        region=None if region is None else through(base, region)[:edge, :edge],
        rows=(measure(before), measure(after)),
    )
