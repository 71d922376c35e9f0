"""Settings of the YAML keys `evaluation`, `comparison_sets` and `attention`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from compo_pipeline.core.settings import SPEED, Name, settings
from compo_pipeline.core.variants import VariantName
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.models.settings import LOCAL_PREFIX, SHIPPED, ModelSettings

Precision = Literal["fp32", "bf16"]


SliceKind = Literal["attribute", "object", "relation", "length", "binding", "source"]


@settings
class EvaluationSettings:
    """Settings of evaluation: devices, precision, batches, slices and report."""

    control: bool = True
    """Whether a control (plain fine-tuning) is trained and compared with the method."""
    device: Annotated[str, SPEED] = "auto"
    """Device of the evaluation: auto, cpu, cuda, cuda:<n> or mps. auto is CUDA if there is a GPU,
    else the CPU."""
    precision: Precision = "fp32"
    """Precision of the towers' forward passes. Embeddings in bf16 decide 1 to 3 items of 1,000
    differently from fp32 and the papers' official code."""
    image_batch: Annotated[PositiveInt, SPEED] = 128
    """Images encoded at a time."""
    workers: Annotated[PositiveInt, SPEED] = 2
    """Threads that decode and preprocess images."""
    slices: tuple[SliceKind, ...] = ()
    """Kinds of slices to compare. `attribute`, `object`, `relation` and `length` describe an item's
    first right text. `binding` says whether its attribute-object pairs are in the training
    captions, which are all parsed for this. `source` is the source of the image's row
    (`data.sources`), for foils and retrieval."""
    gallery: NonNegativeInt = 24
    """Number of items of each kind in the report: items that are right, or wrong, only after
    fine-tuning."""


@settings
class ListedModel(ModelSettings):
    """Settings of a model in a list of models: the keys of `model`, or a scorer."""

    scorer: Literal["contrastive", "matching", "vqascore"] | None = None
    """How a model that is no CLIP-like one scores an image and a text: `contrastive`, by the
    cosines of FLAVA's or BLIP's towers; `matching`, by the probability of a match under their
    image-text matching head; `vqascore`, by a chat model's probability of "Yes" where it is asked
    whether the image shows the text. Its `name` is `local-dir:<folder of transformers>`. Null is a
    CLIP-like model."""

    endpoint: EndpointSettings | None = None
    """Chat model on a server that `vqascore` asks, in place of `name`. The server must send the
    log-probabilities of tokens."""

    def __post_init__(self) -> None:
        """A scorer is a local folder, or a server."""
        ModelSettings.__post_init__(self)
        if self.endpoint is not None:
            if self.scorer != "vqascore":
                raise ValueError(
                    f"endpoint: the scorer vqascore alone asks a server, got {self.scorer}"
                )
            if self.name != SHIPPED:
                raise ValueError(f"name: the model is the endpoint's; leave out '{self.name}'")
        elif self.scorer is not None and not self.name.startswith(LOCAL_PREFIX):
            other = ", or an endpoint" if self.scorer == "vqascore" else ""
            raise ValueError(
                f"name: the scorer {self.scorer} takes {LOCAL_PREFIX}<folder of transformers>"
                f"{other}, got '{self.name}'"
            )
        for key in ("pretrained", "context_length", "config"):
            if self.scorer is not None and getattr(self, key):
                raise ValueError(f"{key}: a scorer has none; leave the key out")


@settings
class ComparisonCell:
    """Settings of one compared training: environment, method and variant."""

    env: str | None = None
    """Kedro's environment, whose globals.yml names method and variant. Null is the environment of
    the run."""
    method: Name | None = None
    """Method of the cell. Null is the one that `env` names."""
    variant: VariantName | None = None
    """Named variant, or several joined by `+`. Null is the environment's."""

    def __post_init__(self) -> None:
        """The environment or the cell names the method."""
        if self.method is None and self.env is None:
            raise ValueError("method: expected the name of a method, since env is null, got null")


@settings
class ComparisonSet:
    """Settings of a set of trainings (methods and variants) to compare over the same seeds."""

    cells: Annotated[dict[str, ComparisonCell], Field(min_length=1)]
    """Cells by label."""
    seeds: PositiveInt = 5
    """Number of training seeds, from 0 on."""


@settings
class AttentionSettings:
    """Settings of the attention analysis: images and phrases."""

    images: str | None = None
    """An image, or a folder of your own images. Null takes images of `split` with the phrases of
    their captions."""
    phrases: str | None = None
    """Phrases for your own images, separated by ";". Every phrase is used with every image."""
    split: str = "test"
    """The dataset's split whose captions are used."""

    def __post_init__(self) -> None:
        """Check that there are images for the phrases and phrases for the images."""
        if (self.images is None) != (self.phrases is None):
            raise ValueError(
                'images and phrases: for your own images set both ("a red shirt; a grey horse")'
            )

    @property
    def topic(self) -> str:
        """Name of the analysis: the split, or `own` for the user's own images."""
        return self.split if self.images is None else "own"
