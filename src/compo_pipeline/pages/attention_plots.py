"""Attention of phrases over images: before and after fine-tuning, and the difference.

After C2LIP, Fig. 2: green for more attention, violet for less, white for no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data.images.decoding import ImageError, Limits, load
from compo_pipeline.evaluation.analysis.attention import Case, attend
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.pages.pages import Page, Text
from compo_pipeline.pages.plots import STYLE, plot

ROWS = 6  # of a grid
_PALE = -1.6  # a gray image between this and 1 is light enough to see the attention over it
# Outliers among the patches have the last colour, so that the others differ visibly.
_PERCENTILES = (1.0, 99.0)
_NOTE = (
    "Attention is the softmax, over the patches of the image, of the phrase's embedding times each "
    "patch's, as C2LIP uses it for pooling in training. It has no temperature, so it is nearly "
    "uniform; colours show multiples of uniform attention, on the same scale in all grids. "
    "Difference: green is more attention after fine-tuning, violet less, white no difference."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class AttentionPanel:
    """Attention maps of one phrase in one image, of the base and of the fine-tuned model."""

    phrase: str
    image: str
    """File name of the image."""
    pixels: NDArray[np.floating]
    """[H, H, 3] in 0..1, the models' input; H is a multiple of G."""
    base: NDArray[np.floating]
    """Attention [G, G] of the base as multiples of uniform attention."""
    fine_tuned: NDArray[np.floating]


def panels_of(
    base: LoadedModel, tuned: LoadedModel, cases: Sequence[Case], limits: Limits
) -> list[AttentionPanel]:
    """Attention panels of phrase-image cases under two models, without unreadable images.

    Raises:
        SettingsError: the image towers of the two models differ.
    """
    towers = [loaded.config["model_cfg"]["vision_cfg"] for loaded in (base, tuned)]
    if towers[0] != towers[1]:
        raise SettingsError(
            f"model: the image towers of {base.name} and {tuned.name} differ; set model.name, "
            "model.pretrained and model.config as they were in the training of the checkpoint"
        )
    panels = []
    for case in cases:
        try:
            image = load(case.root, case.image, limits)
        except ImageError as error:
            log.warning("%s is not drawn: %s", case.root / case.image, error)
            continue
        panels.append(panel_of(base, tuned, image, case.phrase, case.image))
    return panels


def panel_of(
    base: LoadedModel, tuned: LoadedModel, image: Image.Image, phrase: str, name: str = ""
) -> AttentionPanel:
    """The attention panel of a phrase in an image, under two models with the same image tower."""
    pixels = base.preprocess(image)
    (before,) = attend(base, pixels, [phrase])
    (after,) = attend(tuned, tuned.preprocess(image), [phrase])
    shown = pixels.numpy().transpose(1, 2, 0) * np.array(base.std) + np.array(base.mean)
    # Pixels at the edge that the last patches do not reach are left out.
    side = len(before)
    edge = side * (len(shown) // side)
    shown = shown[:edge, :edge].clip(0, 1)
    return AttentionPanel(phrase, name, shown, side**2 * before, side**2 * after)


def attention_page(name: str, panels: Sequence[AttentionPanel]) -> Page:
    """The page of a run's grids of attention maps."""
    label = "Attention of the base and of the fine-tuned model, and the difference"
    over = "Attention of a phrase over an image, before fine-tuning and after"
    figures = [plot(figure, label, kind="jpeg") for figure in grids(panels)]
    return Page(f"Attention of {name}", over, [Text(note=_NOTE), *figures])


@mpl.rc_context(fname=STYLE)
def grids(
    panels: Sequence[AttentionPanel], names: Sequence[str] = ("base", "fine-tuned")
) -> list[Figure]:
    """Figures of a few attention panels each, all on one colour scale.

    A row has the image, and its maps over a pale gray copy of it: before, after, difference.
    """
    if not panels:
        return []
    both = np.stack([[panel.base, panel.fine_tuned] for panel in panels])
    low, high = np.percentile(both, _PERCENTILES)
    # Two models may agree everywhere: the scale needs some width.
    limit = max(float(np.percentile(abs(both[:, 1] - both[:, 0]), _PERCENTILES[1])), 0.01)
    attention = {"cmap": "YlOrBr", "vmin": low, "vmax": high}
    scales = attention, attention, {"cmap": "PRGn", "vmin": -limit, "vmax": limit}
    figures = []
    for start in range(0, len(panels), ROWS):
        rows = panels[start : start + ROWS]
        figure = Figure(figsize=(7.6, 2.2 * len(rows) + 0.7))
        axes = figure.subplots(len(rows), 4, squeeze=False)
        for ax in axes.flat:
            ax.set(xticks=[], yticks=[], frame_on=False)
            ax.grid(visible=False)
        for line, panel in zip(axes, rows, strict=True):
            shown = line[0].imshow(panel.pixels)
            line[0].set(title=panel.phrase, ylabel=panel.image)
            maps = panel.base, panel.fine_tuned, panel.fine_tuned - panel.base
            for ax, values, scale, title in zip(
                line[1:], maps, scales, (*names, "difference"), strict=True
            ):
                ax.imshow(panel.pixels.mean(axis=-1), cmap="gray", vmin=_PALE, vmax=1)
                ax.imshow(values, extent=shown.get_extent(), alpha=0.75, **scale)
                ax.set_title(title, fontweight="normal")
        for columns, label in ((axes[:, 1:3], "attention"), (axes[:, 3:], "difference")):
            colours = columns[0, 0].images[1]
            bar = figure.colorbar(colours, ax=columns, location="bottom", extend="both", aspect=30)
            bar.set_label(f"{label}, times uniform")
        figures.append(figure)
    return figures
