"""Settings of the YAML key `recaption`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from compo_pipeline.core.plugins import named_fields, refuse_unset
from compo_pipeline.core.settings import Share, settings
from compo_pipeline.generation.chat.settings import EndpointSettings

KEY = "recaption"

QUERY = (
    "Can you please describe this image in a long and detailed paragraph? Please keep your "
    "descriptions factual and terse but complete. DO NOT add any unnecessary speculation about the "
    "things that are not part of the image. The description should be purely factual, with no "
    "subjective speculation."
)
"""The query by which CLIC's authors captioned LAION's images (CLIC, Fig. 3)."""


@settings
class LocalCaptionerSettings:
    """Settings of the captioner `transformers`: an image-to-text model in a local folder."""

    folder: str
    """Folder with config, weights (safetensors) and processor, as transformers saves them."""
    max_tokens: PositiveInt = 400
    """Most tokens of an answer."""
    batch_size: PositiveInt = 16
    """Number of images captioned at a time."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights. `auto` is as in the folder."""

    text: str | None = None
    """Text for a model that does not follow instructions: the beginning of BLIP's captions (null:
    none), or Florence-2's task (null: <MORE_DETAILED_CAPTION>)."""


CAPTIONERS = {"endpoint": EndpointSettings, "transformers": LocalCaptionerSettings}
"""Settings classes of captioners, by the value of recaption.captioner."""


@settings
@named_fields(CAPTIONERS)
class RecaptionSettings:
    """Settings of recaptioning: captioner, prompt, images, and checks of its captions."""

    captioner: Literal["endpoint", "transformers"] | None = None
    """Captioner of the images. Its settings are under its name. Its captions replace the source's
    own. Null captions none."""
    prompt: Annotated[str, Field(min_length=1)] = QUERY
    """Prompt for models that follow instructions. The default is CLIC's."""
    splits: tuple[str, ...] | None = None
    """Splits whose images are captioned, by our names. Null captions all."""
    max_side: Annotated[int, Field(ge=16)] = 1024
    """Most pixels of the longer side of an image that is sent. Larger images are scaled down."""
    keep_original: bool = False
    """Whether the source's captions of an image stay as further sentences of its row."""
    dry_run: PositiveInt | None = None
    """Number of random images to caption in a trial run of ingest, which
    `--to-nodes=data.recaption_images` ends after the captions. Null captions all images."""
    known_words: Share | None = 0.5
    """Captions are rejected if the language pipeline knows a smaller share of their words. Null
    rejects none."""

    def __post_init__(self) -> None:
        """Refuse a captioner without settings."""
        refuse_unset(self, "captioner")
