"""Settings of the counterfactuals pipeline; its caption editors and image generators by name.

An installed package adds its own by entry points of the groups `compo_pipeline.caption_editors` and
`compo_pipeline.image_generators`, which name an `EditorEntry` and a `GeneratorEntry`.
"""

from __future__ import annotations

import pkgutil
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from pydantic import Field, NonNegativeFloat, PositiveInt

from compo_pipeline.core.plugins import Registry, named_fields, refuse_unset
from compo_pipeline.core.settings import Share, settings
from compo_pipeline.data.annotations import AnnotationSettings
from compo_pipeline.generation.chat.settings import EndpointSettings
from compo_pipeline.generation.counterfactuals.contract import (
    CaptionEditor,
    EditorEntry,
    GeneratorEntry,
    ImageGenerator,
    Opening,
)
from compo_pipeline.language.alternatives import ReplacementSource

KEY = "counterfactuals"
Rule = Literal["relation", "replace", "negclip", "swap"]
Pixels = Annotated[int, Field(ge=16, multiple_of=8)]


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


_PACKAGE = __package__
RULES = EditorEntry(RulesSettings, f"{_PACKAGE}.editors.rules:RuleEditor", "negatives")
ENDPOINT = EditorEntry(EditorEndpointSettings, f"{_PACKAGE}.editors.llm:EndpointEditor")
TABLE = EditorEntry(AnnotationSettings, f"{_PACKAGE}.table:TableEditor", parses=False)
TABLE_IMAGES = GeneratorEntry(AnnotationSettings, f"{_PACKAGE}.table:TableImages", editor="table")
DIFFUSION = GeneratorEntry(DiffusionSettings, f"{_PACKAGE}.generators.diffusion:open_generator")

CAPTION_EDITORS: Registry[EditorEntry] = Registry(
    "compo_pipeline.caption_editors",
    {name: f"{__name__}:{name.upper()}" for name in ("rules", "endpoint", "table")},
)
IMAGE_GENERATORS: Registry[GeneratorEntry] = Registry(
    "compo_pipeline.image_generators",
    {"diffusion": f"{__name__}:DIFFUSION", "table": f"{__name__}:TABLE_IMAGES"},
)
if TYPE_CHECKING:
    CaptionEditorName: TypeAlias = str
    ImageGeneratorName: TypeAlias = str
else:
    CaptionEditorName, ImageGeneratorName = Literal[*CAPTION_EDITORS], Literal[*IMAGE_GENERATORS]
_PARTS: dict[str, Any] = {**CAPTION_EDITORS, **IMAGE_GENERATORS}


@settings
@named_fields({name: entry.settings for name, entry in _PARTS.items()})
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

    def __post_init__(self) -> None:
        """Refuse a chosen part without settings, and images of what another editor edits."""
        refuse_unset(self, "caption_editor", "image_generator")
        name = self.image_generator
        needed = IMAGE_GENERATORS[name].editor if name is not None else None
        if needed not in (None, self.caption_editor):
            raise ValueError(
                f"image_generator: {name} shows what the caption editor {needed} edited, got the "
                f"caption editor {self.caption_editor}"
            )


def open_editor(settings: CounterfactualSettings, opening: Opening) -> CaptionEditor:
    """Create the configured caption editor.

    Raises:
        SettingsError: settings that cannot be used, found before a caption is edited.
    """
    name = settings.caption_editor
    made = pkgutil.resolve_name(CAPTION_EDITORS[name].path)
    return cast(CaptionEditor, made(getattr(settings, name), f"{KEY}.{name}", opening))


def open_generator(
    settings: CounterfactualSettings, opening: Opening, editor: CaptionEditor
) -> ImageGenerator | None:
    """Create the configured image generator, or None if no images are wanted.

    Raises:
        SettingsError: as of `open_editor`.
    """
    name = settings.image_generator
    if name is None:
        return None
    made = pkgutil.resolve_name(IMAGE_GENERATORS[name].path)
    return cast(ImageGenerator, made(getattr(settings, name), f"{KEY}.{name}", opening, editor))
