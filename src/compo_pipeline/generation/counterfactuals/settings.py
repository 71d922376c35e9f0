"""Settings of the counterfactuals pipeline, its caption editors and image generators."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, PositiveInt

from compo_pipeline.core.plugins import named_fields, plugin_names
from compo_pipeline.core.settings import Section, Share, settings
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.language.alternatives import ReplacementSource

KEY = "counterfactuals"

EDITOR_GROUP, GENERATOR_GROUP = "compo_pipeline.caption_editors", "compo_pipeline.image_generators"
"""Groups of entry points by which installed packages add caption editors and image generators."""
EDITORS = ("rules", "endpoint", "table", *plugin_names(EDITOR_GROUP))
GENERATORS = ("diffusion", "table", *plugin_names(GENERATOR_GROUP))
if TYPE_CHECKING:
    CaptionEditorName: TypeAlias = str
    ImageGeneratorName: TypeAlias = str
else:
    CaptionEditorName, ImageGeneratorName = Literal[*EDITORS], Literal[*GENERATORS]
Rule = Literal["relation", "replace", "negclip", "swap"]
Pixels = Annotated[int, Field(ge=16, multiple_of=8)]


@settings
@named_fields(GENERATORS, Section)
@named_fields(EDITORS, Section)
class CounterfactualSettings:
    """Settings of counterfactuals: sentences to edit, caption editor, image generator."""

    sentences: PositiveInt | None = 1
    """Number of sentences of each row to edit, from the first on. Null edits all. If every caption
    of an image has a row of its own (COCO), the first sentence is that caption."""
    caption_editor: CaptionEditorName = "rules"
    """Caption editor. Its settings are under its name."""
    image_generator: ImageGeneratorName | None = None
    """Generator of the images of edits. Its settings are under its name. Null generates none."""
    seed: int = 0
    """Seed of every image. Caption editors and image generators have further seeds of their own."""
    format: Literal["jpeg", "png"] = "jpeg"
    """Format of image files: JPEG of quality 92, or PNG."""
    tolerated_share: Share = 0.5
    """The run fails if more than this share of the negative edits, or of the positive ones,
    failed."""


@settings
class RulesSettings:
    """Settings of the caption editor `rules`, whose positives are paraphrases."""

    negatives: Annotated[tuple[Rule, ...], Field(min_length=1)] = ("replace", "negclip", "swap")
    """Rules to try. `relation` replaces a relation or exchanges the two things that it relates.
    `replace` replaces a thing, an attribute or a relation. `negclip` exchanges two phrases of a
    kind, and `swap` two words of a kind."""
    order: Literal["given", "drawn"] = "given"
    """Order of the rules. `given` tries the next rule only if the previous one found nothing.
    `drawn` draws an order for each caption. When negatives were read one by one, all broken ones
    came from swaps."""
    careful: bool = True
    """Whether swaps leave out what makes broken English or keeps the meaning. Careful swaps find
    fewer negatives."""
    replacements: ReplacementSource = "lexicon"
    """Source of the words of `replace`: the shipped lexicon, or WordNet through nltk, by the rule
    of FSC-CLIP's code."""


@settings
class EditorEndpointSettings(EndpointSettings):
    """Settings of the caption editor `endpoint`, a language model on a server."""

    temperature: NonNegativeFloat = 0.7
    """Sampling temperature. 0 is greedy."""
    max_tokens: PositiveInt = 120
    """Most tokens of an answer."""


@settings
class DiffusionAdainSettings:
    """Settings of AdaIN: transfer of the real image's channel statistics to the generated one."""

    weight: Share = 0.5
    """Strength of AdaIN. 0 leaves the image as it is, 1 gives it the real image's statistics."""
    space: Literal["latents", "pixels", "vgg", "none"] = "latents"
    """Space in which AdaIN works: the VAE's latents, the pixels, or VGG's relu4_1 features, which
    need `vgg` and `decoder`. `none` turns it off."""
    size: Pixels | None = None
    """Side in pixels to which both images are resized first, in the spaces of pixels and VGG. It is
    also the size of the result. Null keeps the size of the generated image."""
    vgg: str | None = None
    """File with the weights of the VGG encoder (docs/how-to/counterfactuals.md)."""
    decoder: str | None = None
    """File with the weights of the VGG decoder."""

    def __post_init__(self) -> None:
        """VGG has weights of the user's own."""
        if self.space == "vgg" and not (self.vgg and self.decoder):
            raise ValueError(
                "space: vgg needs files of your own under vgg and decoder, got "
                f"{self.vgg} and {self.decoder}"
            )
        if self.size is not None and self.space not in ("pixels", "vgg"):
            raise ValueError(
                f"size: expected null, since space is {self.space} and not pixels or vgg, "
                f"got {self.size}"
            )


@settings
class DiffusionSettings:
    """Settings of the image generator `diffusion`, a text-to-image model."""

    model: str
    """Folder of a text-to-image pipeline as diffusers saves it, or its name on the hub
    (owner/model), with safetensors only."""
    vision: str | None = None
    """Folder or name of a CLIP with image tower and projection, whose embeddings are as wide as the
    model's prompt. Null takes the model's own `image_encoder`."""
    steps: PositiveInt = 4
    """Number of denoising steps."""
    guidance: NonNegativeFloat = 7.5
    """Scale of the guidance by the prompt. Models distilled without guidance need 0."""
    height: Pixels = 512
    """Height of the images in pixels, a multiple of eight."""
    width: Pixels = 512
    """Width of the images in pixels, a multiple of eight."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of weights and arithmetic."""
    injection: bool = True
    """Whether features of the real image go into the prompt's padding."""
    adain: DiffusionAdainSettings = field(default_factory=DiffusionAdainSettings)
    """AdaIN: gives a generated image the channel statistics of the real one."""
    batch: PositiveInt = 8
    """Number of images generated at a time. An image depends on its neighbours only by rounding."""
