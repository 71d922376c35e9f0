"""A registered version beside its base, as the page shows them: scores and attention of one image.

K captions, D width of the joint space.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from compo_pipeline.data.images.decoding import Limits, load
from compo_pipeline.evaluation.analysis.attention import Case
from compo_pipeline.evaluation.embed import tokenize_texts
from compo_pipeline.methods import registry as methods
from compo_pipeline.models.encoding import embed
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.pages.attention_plots import panels_of, render
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.verification import load_base, verified

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MAX_CAPTIONS = 100
# A tokenizer takes time in the square of a word's length.
MAX_CHARACTERS = 1000


class InputError(ValueError):
    """Error about an input of the page that cannot be used; its message is for the user."""


@dataclass(frozen=True, slots=True)
class CaptionScores:
    """Cosines of one caption with an image under base and fine-tuned model.

    Attributes:
        caption: as typed.
        base: its cosine with the image, under the base.
        tuned: the same under the fine-tuned model.
        best_of_base: whether no caption has a higher score under the base.
        best_of_tuned: the same under the fine-tuned model.
        truncated: whether it is longer than a model's context.
    """

    caption: str
    base: float
    tuned: float
    best_of_base: bool
    best_of_tuned: bool
    truncated: bool


@dataclass(frozen=True, eq=False)
class VersionPair:
    """A registered version and the base model that it was fine-tuned from, both loaded.

    Attributes:
        name: of the registered model.
        version: number of the version.
        method: label of the fine-tuning method.
        label: of the version beside its base, such as its alias.
        base: the base model.
        tuned: the version's model.
        limits: of uploaded images.
    """

    name: str
    version: int
    method: str
    label: str
    base: LoadedModel
    tuned: LoadedModel
    limits: Limits = field(default_factory=Limits)

    @property
    def title(self) -> str:
        """Title line: name and version, method, and base model."""
        origin = f"{self.method}, fine-tuned from {self.base.name}"
        return f"{self.name}, version {self.version}: {origin}"

    def scores(self, path: Path, captions: Sequence[str]) -> list[CaptionScores]:
        """Cosine similarities of an image with captions under both models, in float32.

        Raises:
            ImageError: the image cannot be used.
        """
        image = load(path.parent, path.name, self.limits)
        models = self.base, self.tuned
        base, tuned = (_cosines(model, image, captions) for model in models)
        truncated = [tokenize_texts(captions, model.tokenize).truncated for model in models]
        columns = zip(captions, base, tuned, truncated[0] | truncated[1], strict=True)
        return [
            CaptionScores(caption, before, after, before == max(base), after == max(tuned), bool(t))
            for caption, before, after, t in columns
        ]

    def attention(self, image: Path, phrase: str) -> Image.Image:
        """Image of both models' attention maps for a phrase, and of their difference.

        Raises:
            ImageError: the image cannot be used.
            NoPatches: the models have no patch features.
        """
        # Raises for an unusable image, which `panels_of` would leave out.
        load(image.parent, image.name, self.limits)
        case = Case(image.parent, image.name, phrase)
        (panel,) = panels_of(self.base, self.tuned, [case], self.limits)
        # Without the name of the uploaded file.
        (grid,) = render([replace(panel, image="", names=("base", self.label))])
        return grid


def load_pair(
    version: ModelVersion,
    label: str,
    base: ModelSettings,
    device: str,
    signing: SigningSettings,
) -> VersionPair:
    """Load a registered version and the base model that it was fine-tuned from.

    Args:
        version: of the registry.
        label: of the version beside its base.
        base: the base's settings.
        device: for both.
        signing: the configured keys.

    Raises:
        SettingsError: `model` names another base.
        VersionError: the version's files are not those that were registered.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = verified(version, Path(folder), signing)
        method = read_record(files.export).get("method", "unknown method")
        tuned = files.load().to(device)
    base_model = load_base(files.lineage, base, device)
    return VersionPair(
        name=version.name,
        version=int(version.version),
        method=methods.label(method),
        label=label,
        base=base_model,
        tuned=tuned,
    )


def captions_of(text: str) -> list[str]:
    """Captions in the page's text field, one per line, without empty lines and duplicates.

    Raises:
        InputError: there are none or too many, or one is too long.
    """
    lines = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    captions = [checked_length(line) for line in lines]
    if not captions:
        raise InputError("Type at least one caption, each on a line of its own.")
    if len(captions) > MAX_CAPTIONS:
        raise InputError(f"{len(captions)} captions are too many; at most {MAX_CAPTIONS}.")
    return captions


def checked_length(text: str) -> str:
    """Return a text unchanged, or raise an error for the user if it is too long.

    Raises:
        InputError: it is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"'{text[:20]}...' has {len(text)} characters; at most {MAX_CHARACTERS} are read."
        )
    return text


def _cosines(loaded: LoadedModel, image: Image.Image, captions: Sequence[str]) -> list[float]:
    """Cosine similarities [K] of an image with each caption under a model."""
    u, t = embed(loaded, [image], captions)
    cosines: list[float] = (t @ u[0]).tolist()
    return cosines
