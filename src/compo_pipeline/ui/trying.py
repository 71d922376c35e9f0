"""What a base and a model fine-tuned from it make of one image: scores and attention.

K captions, D width of the joint space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from PIL import Image

from compo_pipeline.analysis.regions import Case
from compo_pipeline.evaluation.embed import tokenised
from compo_pipeline.images.decoding import FORMATS, ImageError, Limits, load
from compo_pipeline.models.dense import NoPatches
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.presentation.attention_figures import render
from compo_pipeline.presentation.attention_panels import panels_of

MOST_CAPTIONS = 100
# A tokenizer takes time in the square of a word's length.
MOST_CHARACTERS = 1000


class Unanswerable(ValueError):
    """A question that has no answer; the message is for the person who asked."""


class NoAttention(ValueError):
    """The models do not tell where they look; the message is for the person who asked."""


@dataclass(frozen=True, slots=True)
class Line:
    """One caption under both models.

    Attributes:
        caption: as it was typed.
        base: its cosine with the image, under the base.
        tuned: and under the fine-tuned model.
        best_of_base: whether the base finds no caption better.
        best_of_tuned: whether the fine-tuned model finds none better.
        cut: whether it is longer than the models read.
    """

    caption: str
    base: float
    tuned: float
    best_of_base: bool
    best_of_tuned: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """Every caption's line in the order typed, and which of them each model takes."""

    lines: tuple[Line, ...]

    @property
    def agree(self) -> bool:
        """Whether both models take the same."""
        return all(line.best_of_base == line.best_of_tuned for line in self.lines)


@dataclass(frozen=True, eq=False)
class Pair:
    """A base and a model fine-tuned from it, loaded.

    Attributes:
        base: before fine-tuning.
        tuned: and after.
        label: how the latter is called.
        limits: what is accepted as an image.
    """

    base: LoadedModel
    tuned: LoadedModel
    label: str
    limits: Limits = field(default_factory=Limits)

    def scores(self, path: Path, captions: Sequence[str]) -> Scores:
        """Cosines of an image and captions under both models, in float32 as they are served.

        Raises:
            ImageError: the image cannot be used.
        """
        image = load(path.parent, path.name, self.limits)
        base, tuned = (_cosines(model, image, captions) for model in (self.base, self.tuned))
        longer = [
            tokenised(captions, model.tokenize).truncated for model in (self.base, self.tuned)
        ]
        lines = (
            Line(caption, before, after, before == max(base), after == max(tuned), bool(cut))
            for caption, before, after, cut in zip(
                captions, base, tuned, longer[0] | longer[1], strict=True
            )
        )
        return Scores(tuple(lines))

    def attention(self, image: Path, phrase: str) -> Image.Image:
        """Where both models look in an image when they read a phrase, and the difference.

        Raises:
            ImageError: the image cannot be used.
            NoAttention: the models have no features of patches.
        """
        # For the reason why it cannot be: what is drawn of several images leaves it out.
        load(image.parent, image.name, self.limits)
        case = Case(image.parent, image.name, phrase)
        try:
            (panel,) = panels_of(self.base, self.tuned, [case], self.limits)
        except NoPatches as error:
            raise NoAttention(f"There is no attention to show: {error.reason}.") from error
        # An uploaded file's name says nothing.
        return render([replace(panel, image="", names=("base", self.label))])


# By the reasons of a ImageError, for the person who gave the file.
_UNUSABLE = {
    "empty": "This file is empty.",
    "not_an_image": (
        f"This file is no image of a format that is read ({', '.join(FORMATS)}). Convert it first, "
        "an iPhone's HEIC for instance to JPEG."
    ),
    "oversized": "This image is too large: {}.",
    "truncated": "This image file is incomplete: its end is missing. Upload it again.",
    "corrupt": "This image file is damaged and cannot be decoded: {}.",
}


def unusable(error: ImageError) -> str:
    """Why an image cannot be used, for the person who gave it."""
    detail = str(error).removeprefix(f"{error.reason}: ")
    return _UNUSABLE.get(error.reason, "This file cannot be used: {}.").format(detail)


def captions_of(typed: str) -> list[str]:
    """The captions of a text, one a line; empty lines and repeats are left out.

    Raises:
        Unanswerable: there is none, there are too many, or one is too long.
    """
    lines = list(dict.fromkeys(line.strip() for line in typed.splitlines() if line.strip()))
    captions = [short_enough(line) for line in lines]
    if not captions:
        raise Unanswerable("Type at least one caption, each on a line of its own.")
    if len(captions) > MOST_CAPTIONS:
        raise Unanswerable(f"{len(captions)} captions are too many; at most {MOST_CAPTIONS}.")
    return captions


def short_enough(text: str) -> str:
    """The text itself.

    Raises:
        Unanswerable: it is longer than any that is read.
    """
    if len(text) > MOST_CHARACTERS:
        raise Unanswerable(
            f"'{text[:20]}...' has {len(text)} characters; at most {MOST_CHARACTERS} are read."
        )
    return text


@torch.inference_mode()
def _cosines(loaded: LoadedModel, image: Image.Image, captions: Sequence[str]) -> list[float]:
    """[K], of one image with each caption."""
    device = loaded.device
    seen = encode_images(loaded.model, loaded.preprocess(image)[None].to(device))
    read = encode_texts(loaded.model, loaded.tokenize(list(captions)).to(device))
    cosines: list[float] = (read @ seen[0]).tolist()
    return cosines
