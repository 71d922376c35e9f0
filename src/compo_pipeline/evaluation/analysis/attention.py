"""Attention of a phrase over the patches of an image.

K phrases, P patches in a grid of G x G, D width of the joint space.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.settings import AttentionSettings
from compo_pipeline.language.concepts import concepts
from compo_pipeline.language.parsing import parses_of
from compo_pipeline.models.dense import FIX, attention, encode_images_densely
from compo_pipeline.models.encoding import encode_texts
from compo_pipeline.models.loading import LoadedModel

log = logging.getLogger(__name__)

# Phrases that are drawn.
CASES = 18


@dataclass(frozen=True, slots=True)
class Case:
    """One phrase in one image: the folder of the image, its path below it, and the phrase."""

    root: Path
    image: str
    phrase: str


def find_cases(
    settings: AttentionSettings, captions: Iterable[Caption], root: Path, language_model: str
) -> list[Case]:
    """The phrases to draw: all of the user's with each of their images, or some of a split.

    Args:
        settings: images, phrases and split.
        captions: rows of the dataset; the noun phrases of a row's caption belong to its image.
        root: folder of the dataset.
        language_model: name of the spaCy pipeline that parses the captions.

    Raises:
        SettingsError: there are no images or phrases.
    """
    if settings.images is not None and settings.phrases is not None:
        cases = _own_cases(Path(settings.images).expanduser(), settings.phrases)
        return rng("attention", 0).sample(cases, min(CASES, len(cases)))
    rows = [row for row in captions if row.split == settings.split]
    if not rows:
        raise SettingsError(
            f"attention.split: '{settings.split}' has no captions; set attention.images and "
            "attention.phrases for your own images"
        )
    drawn = rng("attention", 0).sample(rows, min(CASES, len(rows)))
    parses = parses_of(language_model, (row.sentences[0] for row in drawn))
    found = (
        Case(root, row.image, concept.text)
        for row in drawn
        for concept in concepts(parses[row.sentences[0]])
    )
    return list(islice(found, CASES))


def _own_cases(place: Path, text: str) -> list[Case]:
    """Pair each given phrase with each image file of a folder, without its subfolders."""
    phrases = list(dict.fromkeys(phrase.strip() for phrase in text.split(";") if phrase.strip()))
    if not phrases:
        raise SettingsError(f"attention.phrases: no phrase in {text!r}")
    files = [place] if place.is_file() else []
    if place.is_dir():
        files = sorted(each for each in place.iterdir() if each.is_file() and each.name[0] != ".")
    if not files:
        raise SettingsError(f"attention.images: {place} is no image, and no folder of images")
    return [Case(file.parent, file.name, phrase) for file in files for phrase in phrases]


@torch.inference_mode()
def attend(loaded: LoadedModel, pixels: Tensor, phrases: Sequence[str]) -> NDArray[np.float32]:
    """Attention maps [K, G, G] of phrases over one image, computed in float32.

    Each sums to 1.

    They have no temperature, as in C2LIP's training, and are nearly uniform. bfloat16 would round
    most of that off.

    Args:
        loaded: a model with patch features in the joint space.
        pixels: [3, H, H], as the model's transform gives them.
        phrases: K texts; each is encoded as a text of its own.

    Raises:
        NoPatches: the model has no features of patches.
        SettingsError: it has no square grid of them.
    """
    device = loaded.device
    texts = encode_texts(loaded.model, loaded.tokenize(list(phrases)).to(device))  # [K, D]
    patches = encode_images_densely(loaded.model, pixels[None].to(device), loaded.name).patches
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise SettingsError(
            f"model.name: '{loaded.name}' has {patches.shape[1]} patches, expected a square grid "
            f"of them; {FIX}"
        )
    found: NDArray[np.float32] = attention(patches, texts)[0].reshape(-1, side, side).cpu().numpy()
    return found
