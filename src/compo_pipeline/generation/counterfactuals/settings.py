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
    """how many sentences of each row, from the first on; null for all. Where every caption of an
    image has a row of its own (COCO), the first is its own."""
    caption_editor: CaptionEditorName = "rules"
    """what edits captions; its settings are under its name."""
    image_generator: ImageGeneratorName | None = None
    """what generates images of the edits, likewise; null for none."""
    seed: int = 0
    """of every image; caption editors and image generators have further seeds of their own."""
    format: Literal["jpeg", "png"] = "jpeg"
    """of image files: JPEG of quality 92, or PNG."""
    tolerated_share: Share = 0.5
    """the run fails when more than this share of the negative edits failed, or of the positive
    ones."""


@settings
class RulesSettings:
    """Settings of the caption editor `rules`, whose positives are paraphrases."""

    negatives: Annotated[tuple[Rule, ...], Field(min_length=1)] = ("replace", "negclip", "swap")
    """the rules to try: `relation` replaces a relation or exchanges the two things that it relates,
    `replace` replaces a thing, an attribute or a relation, `negclip` exchanges two phrases of a
    kind, `swap` two words of a kind."""
    order: Literal["given", "drawn"] = "given"
    """`given`: the next rule is tried only where the one before found nothing; `drawn`: each
    caption draws the order of the rules. Of negatives that were read one by one, all broken ones
    came from swaps."""
    careful: bool = True
    """swaps leave out what makes broken English or says the same; they find less."""
    replacements: ReplacementSource = "lexicon"
    """where `replace` finds its words: the shipped lexicon, or WordNet through nltk, by the rule of
    FSC-CLIP's code."""


@settings
class EditorEndpointSettings(EndpointSettings):
    """Settings of the caption editor `endpoint`, a language model on a server."""

    temperature: NonNegativeFloat = 0.7
    """of sampling; 0 is greedy."""
    max_tokens: PositiveInt = 120
    """most tokens of an answer."""
    attempts: PositiveInt = 3
    """times that a caption is asked for, with another seed each, until an answer passes the
    checks."""


@settings
class DiffusionAdainSettings:
    """Settings of AdaIN: transfer of the real image's channel statistics to the generated one."""

    weight: Share = 0.5
    """0 leaves the image as it is, 1 gives it the real one's statistics."""
    space: Literal["latents", "pixels", "vgg", "none"] = "latents"
    """of the VAE's latents, of the pixels, or of VGG's relu4_1 features, which need `vgg` and
    `decoder`; `none` turns it off."""
    size: Pixels | None = None
    """side in pixels to which both images are squashed before, in the spaces of pixels and VGG: the
    size of the result; null: as the image was generated."""
    vgg: str | None = None
    """file of the VGG encoder's weights; see docs/how-to/counterfactuals.md."""
    decoder: str | None = None
    """file of its decoder's weights."""

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
    """folder of a text-to-image pipeline as diffusers saves it, or its name on the hub
    (owner/model); safetensors only."""
    vision: str | None = None
    """folder or name of a CLIP with image tower and projection, whose embeddings are as wide as the
    model's prompt; null takes the model's own `image_encoder`."""
    steps: PositiveInt = 4
    """of denoising."""
    guidance: NonNegativeFloat = 7.5
    """scale of the guidance by the prompt; models distilled without it want 0."""
    height: Pixels = 512
    """of the images, in pixels; a multiple of eight, as is the width."""
    width: Pixels = 512
    """of the images, in pixels."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """of weights and arithmetic."""
    injection: bool = True
    """whether the real image's features go into the prompt's padding."""
    adain: DiffusionAdainSettings = field(default_factory=DiffusionAdainSettings)
    """the real image's statistics."""
    batch: PositiveInt = 8
    """images at a time; an image does not depend on its neighbours but for rounding."""
