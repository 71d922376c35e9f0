"""What tests ask of a registry, and of a model in place of a server."""

import base64
import io
from collections.abc import Iterable
from typing import Any

import mlflow
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


def aliases_of(name: str) -> dict[str, int]:
    """Versions of a registered model by alias."""
    found = mlflow.MlflowClient().get_registered_model(name).aliases
    return {alias: int(version) for alias, version in found.items()}
