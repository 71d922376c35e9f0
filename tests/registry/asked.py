"""A model in place of a server, images as requests send them, and embeddings without a server."""

import base64
import io
from collections.abc import Iterable
from typing import Any

import torch
from PIL import Image

from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.serving.deployment import Deployment
from compo_pipeline.serving.exchange import Served
from compo_pipeline.serving.settings import ServingSettings


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    """An image file in base64."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return base64.b64encode(buffer.getvalue()).decode()


@torch.no_grad()
def embedded(
    loaded: LoadedModel, images: Iterable[Image.Image], texts: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of images and of texts, of length one."""
    u = loaded.model.encode_image(torch.stack([*map(loaded.preprocess, images)]), normalize=True)
    return u, loaded.model.encode_text(loaded.tokenize(texts), normalize=True)


def deployed(loaded: LoadedModel, settings: ServingSettings, **more: Any) -> Deployment:
    """A model as version 3 of `toy-clip`."""
    return Deployment(loaded, Served("toy-clip", 3, loaded.fingerprint), settings, **more)
