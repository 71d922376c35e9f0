"""The served model: MLflow runs this file (models from code), without compo_pipeline.

Input: a table with the columns `image` (base64, a data URI, or the path of a file) and `text`.
Output: one column, `similarity`, the cosine of the row's image and text.
"""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pandas as pd
import torch
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from PIL import Image

MAX_BYTES = 20_000_000
MAX_PIXELS = 50_000_000
CHUNK = 64
# Longer texts are no paths: the system would refuse to look them up.
LONGEST_PATH = 1024


class ImageTextModel(PythonModel):
    """Scores images against captions with an exported open_clip folder."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the folder logged as the artefact `model`."""
        folder = f"local-dir:{context.artifacts['model']}"
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model, _, self.preprocess = open_clip.create_model_and_transforms(
            folder, device=self.device
        )
        self.model = model.eval()
        self.tokenize = open_clip.get_tokenizer(folder)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Cosine similarity of image and text, row by row; equal ones are encoded once."""
        if model_input.empty:
            return pd.DataFrame({"similarity": np.zeros(0)})
        image_of, images = pd.factorize(model_input["image"])
        text_of, texts = pd.factorize(model_input["text"])
        u = self._encode(list(images), self._pictures, self.model.encode_image)
        t = self._encode(list(texts), self.tokenize, self.model.encode_text)
        similarity = (u[image_of] * t[text_of]).sum(axis=1)
        return pd.DataFrame({"similarity": similarity.astype(float)}, index=model_input.index)

    def _pictures(self, images: list[str]) -> torch.Tensor:
        return torch.stack([self.preprocess(read_image(image)) for image in images])

    def _encode(self, items: list[str], prepare: Any, encode: Any) -> np.ndarray:
        """Normalised embeddings [n, D] of n items."""
        with torch.inference_mode():
            parts = [
                encode(prepare(items[start : start + CHUNK]).to(self.device), normalize=True)
                for start in range(0, len(items), CHUNK)
            ]
        return torch.cat(parts).float().cpu().numpy()


def read_image(value: str) -> Image.Image:
    """Decode one picture.

    Raises:
        ValueError: not a picture, or larger than MAX_BYTES or MAX_PIXELS.
    """
    shown = value if len(value) <= 60 else value[:57] + "..."
    try:
        picture = Image.open(io.BytesIO(_read_bytes(value, shown)))
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError(
                f"image '{shown}' has {picture.width} x {picture.height} pixels; at most "
                f"{MAX_PIXELS} are decoded"
            )
        return picture.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"image '{shown}' cannot be decoded: {error}") from error


def _read_bytes(value: str, shown: str) -> bytes:
    path = Path(value[:LONGEST_PATH])
    is_path = len(value) <= LONGEST_PATH and not value.startswith("data:") and path.is_file()
    # Four characters of base64 carry three bytes.
    size = path.stat().st_size if is_path else len(value) * 3 // 4
    if size > MAX_BYTES:
        raise ValueError(f"image '{shown}' has {size} bytes; at most {MAX_BYTES} are read")
    if is_path:
        return path.read_bytes()
    encoded = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError(
            f"image '{shown}' is neither base64, nor a data URI, nor the path of a file"
        ) from None


set_model(ImageTextModel())
