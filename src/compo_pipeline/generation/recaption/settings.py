"""Settings of the YAML key `recaption`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from compo_pipeline.core.plugins import named_fields
from compo_pipeline.core.settings import Section, Share, settings

KEY = "recaption"

QUERY = (
    "Can you please describe this image in a long and detailed paragraph? Please keep your "
    "descriptions factual and terse but complete. DO NOT add any unnecessary speculation about the "
    "things that are not part of the image. The description should be purely factual, with no "
    "subjective speculation."
)
"""The query by which CLIC's authors captioned LAION's images (CLIC, Fig. 3)."""


@settings
@named_fields(("endpoint", "transformers"), Section)
class RecaptionSettings:
    """Settings of recaptioning: captioner, prompt, images, and checks of its captions."""

    captioner: Literal["endpoint", "transformers"] | None = None
    """what captions images; its settings are under its name. Its captions take the place of the
    source's own. null: none."""
    prompt: Annotated[str, Field(min_length=1)] = QUERY
    """what a model that follows instructions is asked about each image; the default is CLIC's."""
    splits: tuple[str, ...] | None = None
    """our names of the splits whose images are captioned; null: all."""
    max_side: Annotated[int, Field(ge=16)] = 1024
    """most pixels of an image's longer side as it is asked about; larger ones are made smaller."""
    keep_original: bool = False
    """whether the source's captions of an image stay as further sentences of its row."""
    dry_run: PositiveInt | None = None
    """images that are asked about to look at, drawn at random, where ingest ends with them
    (`--to-nodes=data.recaption_images`); null: all images are."""
    known_words: Share | None = 0.5
    """captions are rejected of whose words the language pipeline knows a smaller share; null:
    none."""


@settings
class LocalCaptionerSettings:
    """Settings of the captioner `transformers`: an image-to-text model in a local folder."""

    folder: str
    """config, weights (safetensors) and processor, as transformers saves them."""
    max_tokens: PositiveInt = 400
    """most tokens of an answer."""
    batch_size: PositiveInt = 16
    """questions that are asked together."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of the weights; `auto` is as in the folder."""

    text: str | None = None
    """text for a model that follows no instructions: the beginning of BLIP's captions (null:
    none), Florence-2's task (null: <MORE_DETAILED_CAPTION>)."""
