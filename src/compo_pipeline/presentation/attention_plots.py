"""Grids of images: attention of a phrase before and after fine-tuning, and the difference.

After C2LIP, Fig. 2: green for more attention, violet for less, white for no difference.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.analysis.attention import Case, attend
from compo_pipeline.images.decoding import ImageError, Limits, load
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation.pages import ImageCard, Page, Plot, thumbnail
from compo_pipeline.presentation.plots import STYLE

ROWS = 6  # of a grid
_MAPS = 3  # right of the image: before, after, and the difference
_DPI = 150
_GRID_SIDE = 2200  # pixels of a grid on the page, at most
_SIDE = 448  # pixels of a drawn image, whatever size the model sees
_INCH, _HEAD, _FOOT = 1.9, 0.4, 0.75
# Outliers among the patches have the last colour, so that the others differ visibly.
_PERCENTILES = (1.0, 99.0)
_NOTE = (
    "Attention is the softmax, over the patches of the image, of the phrase's embedding times each "
    "patch's, as C2LIP uses it for pooling in training. It has no temperature, so it is nearly "
    "uniform; colours show multiples of uniform attention, on the same scale in all grids. "
    "Difference: green is more attention after fine-tuning, violet less, white no difference."
)

log = logging.getLogger(__name__)


class ColourScales(NamedTuple):
    """Colour scales of attention and of its difference, the same in all grids of a run."""

    attention: ScalarMappable
    difference: ScalarMappable


@dataclass(frozen=True, eq=False)
class AttentionPanel:
    """Attention maps of one phrase in one image, of the base and of the fine-tuned model."""

    phrase: str
    image: str
    """File name of the image."""
    pixels: NDArray[np.floating]
    """[H, H, 3] in 0..1, the models' input; H is a multiple of G."""
    base: NDArray[np.floating]
    """Attention [G, G] as multiples of uniform attention; likewise `fine_tuned`."""
    fine_tuned: NDArray[np.floating]
    names: tuple[str, str] = ("base", "fine-tuned")
    """Names of the two models."""


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
            f"model: the image towers of {base.name} and {tuned.name} differ; set model.name and "
            "model.pretrained as they were in the training of the checkpoint"
        )
    of_image: dict[tuple[Path, str], list[str]] = {}
    for case in cases:
        of_image.setdefault((case.root, case.image), []).append(case.phrase)
    panels = []
    for place, phrases in of_image.items():
        try:
            image = load(*place, limits)
        except ImageError as error:
            log.warning("%s is not drawn: %s", Path(*place), error)
            continue
        pixels = base.preprocess(image)
        before = attend(base, pixels, phrases)
        after = attend(tuned, tuned.preprocess(image), phrases)
        shown = pixels.numpy().transpose(1, 2, 0) * np.array(base.std) + np.array(base.mean)
        # Pixels at the edge that the last patches do not reach are left out.
        side = before.shape[1]
        edge = side * (len(shown) // side)
        shown = shown[:edge, :edge].clip(0, 1)
        maps = zip(phrases, side**2 * before, side**2 * after, strict=True)
        panels += [AttentionPanel(phrase, place[1], shown, *both) for phrase, *both in maps]
    return panels


def attention_page(name: str, panels: Sequence[AttentionPanel]) -> Page:
    """The page of a run's grids of attention maps."""
    label = "Attention of the base and of the fine-tuned model, and the difference"
    grids = [ImageCard(label, *thumbnail(grid, _GRID_SIDE)) for grid in render(panels)]
    over = "Attention of a phrase over an image, before fine-tuning and after"
    return Page(f"Attention of {name}", over, [Plot(images=grids, note=_NOTE)])


def render(panels: Sequence[AttentionPanel]) -> Iterator[Image.Image]:
    """Yield images with grids of a few attention panels each, all on one colour scale."""
    if not panels:
        return
    scales = _colour_scales(panels)
    for start in range(0, len(panels), ROWS):
        buffer = io.BytesIO()
        with mpl.rc_context(STYLE):
            _plot_grid(panels[start : start + ROWS], scales).savefig(buffer, dpi=_DPI, format="png")
        yield Image.open(buffer).convert("RGB")


def _colour_scales(panels: Sequence[AttentionPanel]) -> ColourScales:
    """Colour scales that fit the attention values of all panels."""
    both = np.stack([[panel.base, panel.fine_tuned] for panel in panels])
    low, high = np.percentile(both, _PERCENTILES)
    # Two models may agree everywhere: the scale needs some width.
    limit = max(float(np.percentile(abs(both[:, 1] - both[:, 0]), _PERCENTILES[1])), 0.01)
    return ColourScales(
        ScalarMappable(Normalize(float(low), float(high)), "YlOrBr"),
        ScalarMappable(Normalize(-limit, limit), "PRGn"),
    )


def _plot_grid(panels: Sequence[AttentionPanel], scales: ColourScales) -> Figure:
    """Plot a figure with a row for each attention panel, and colour bars below."""
    across, height = 1 + _MAPS, len(panels) * (_INCH + _HEAD) + _FOOT
    figure = Figure(figsize=(across * _INCH, height))
    axes = figure.subplots(len(panels), across, squeeze=False)
    figure.subplots_adjust(
        left=0, right=1, bottom=_FOOT / height, top=1 - 0.2 / height, wspace=0.04,
        hspace=_HEAD / _INCH,
    )  # fmt: skip
    for line, panel in zip(axes, panels, strict=True):
        _plot_row(line, panel, scales)
    low, high = 0.42 / height, 0.1 / height
    _plot_colour_bar(figure, (0.26, low, 0.46, high), scales.attention, "attention, times uniform")
    _plot_colour_bar(
        figure, (0.755, low, 0.22, high), scales.difference, "difference, times uniform"
    )
    return figure


def _plot_row(line: Sequence[Axes], panel: AttentionPanel, scales: ColourScales) -> None:
    """Plot an attention panel: the image, and three maps over a pale grey copy of it."""
    gray = panel.pixels @ np.array([0.299, 0.587, 0.114])
    tints = (
        scales.attention.to_rgba(panel.base),
        scales.attention.to_rgba(panel.fine_tuned),
        scales.difference.to_rgba(panel.fine_tuned - panel.base),
    )
    large = np.stack([_resized(panel.pixels[..., k], _SIDE) for k in range(3)], axis=-1)
    shown = [large, *(_overlay(gray, tint) for tint in tints)]
    for ax, image in zip(line, shown, strict=True):
        ax.imshow(image)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(visible=True, color="#e4e0d6")
    # Else two dollar signs in a name would be parsed as a formula.
    line[0].set_title(panel.phrase, fontsize=9.5, parse_math=False)
    label = line[0].set_xlabel(panel.image, fontsize=6, loc="left", labelpad=2, color="#8b867b")
    label.set_parse_math(False)
    for ax, title in zip(line[1:], (*panel.names, "difference"), strict=True):
        ax.set_title(title, fontsize=7.5, fontweight="normal", color="#6b675e")


def _overlay(gray: NDArray[np.floating], colours: NDArray[np.floating]) -> NDArray[np.floating]:
    """Blend colours of image patches [G, G, 4] over a pale grey image [H, H]."""
    pale = _resized(0.62 + 0.38 * gray, _SIDE)
    # Each pixel has the colour of its patch, so that patches keep their edges.
    patch = np.arange(_SIDE) * len(colours) // _SIDE
    shown: NDArray[np.floating] = colours[patch[:, None], patch, :3] * pale[..., None]
    return shown


def _resized(plane: NDArray[np.floating], side: int) -> NDArray[np.floating]:
    """An array resized bicubically to side x side pixels, clipped to 0..1."""
    image = Image.fromarray(plane.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(image).clip(0, 1)


def _plot_colour_bar(
    figure: Figure, place: tuple[float, float, float, float], colours: ScalarMappable, label: str
) -> None:
    """Plot a horizontal colour bar with its label."""
    bar = figure.colorbar(
        colours, cax=figure.add_axes(place), orientation="horizontal", extend="both"
    )
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)
