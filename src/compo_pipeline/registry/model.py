"""The served model: MLflow runs this file (models from code), without compo_pipeline.

The input is a table with the column `image`, the column `text`, or both; `params` hold the task
and what all rows share. The answer has a row for each row, in the same order:

    score     image and text               similarity
              image, params.texts          similarities, one for each text
    embed     image or text                embedding, of length 1
    rank      image, params.texts          texts and their similarities, best first
    classify  image, params.labels,        label and probability of the likeliest label,
              params.templates             probabilities of all labels

A similarity is a cosine. An image is base64, a data URI or, where COMPO_CLIP_IMAGE_ROOT names a
folder, the path of a file below it; never a URL. It is read as training reads it: upright, in RGB,
without its transparency, the first one of several.

n rows, K texts, D width of the embeddings.
"""

from __future__ import annotations

import base64
import io
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import open_clip
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

Vectors: TypeAlias = NDArray[np.float32]

# Every parameter, with its value where a request gives none.
PARAMS: dict[str, Any] = {
    "task": "score",
    "texts": [],
    "labels": [],
    "templates": ["a photo of a {}."],
}
# What each task reads of them.
TAKES = {
    "score": ("texts",),
    "embed": (),
    "rank": ("texts",),
    "classify": ("labels", "templates"),
}
CHUNK = 64
# Not TIFF: whole tiles of it are unpacked, gigabytes for an image of one pixel.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
# Longer texts are no paths: the system would refuse to look them up.
LONGEST_PATH = 1024
# open_clip's own tokenizer takes time in the square of a word's length, and keeps each word.
LONGEST_WORD = 64
WORDS_KEPT = 50_000
# Bytes of the longest number of an answer: -7.638926914230008e-05 and what parts it.
NUMBER = 24
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Refused(MlflowException):
    """A request that cannot be answered: HTTP 400."""

    def __init__(self, reason: str) -> None:
        """Say what was got, and what is expected."""
        super().__init__(reason, error_code=INVALID_PARAMETER_VALUE)

    def serialize_as_json(self) -> str:
        """The reason alone: MLflow's server puts the data before it, megabytes of base64."""
        return json.dumps({"error_code": self.error_code, "message": self.args[0]})


@dataclass(frozen=True)
class Limits:
    """What one request may ask; each number is COMPO_CLIP_MAX_<NAME> in the environment.

    Attributes:
        rows: of the table.
        texts: of the parameters (labels times templates).
        characters: of all texts together.
        answer: bytes of the answer in JSON, as far as it grows with the parameters.
        bytes: of one encoded image.
        pixels: of one image, by its header.
        root: the only folder that images are read from (COMPO_CLIP_IMAGE_ROOT).
    """

    rows: int = 1000
    texts: int = 1024
    characters: int = 200_000
    answer: int = 30_000_000
    bytes: int = 20_000_000
    pixels: int = 50_000_000
    root: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """The limits that a process was started with.

        Raises:
            ValueError: a number is not one, or the root is no folder; names the variable.
        """
        given: dict[str, Any] = {}
        for name in (field.name for field in fields(cls) if field.name != "root"):
            variable = f"COMPO_CLIP_MAX_{name.upper()}"
            if value := environment.get(variable):
                if not value.isdecimal():
                    raise ValueError(f"{variable} is '{value}', expected a whole number")
                given[name] = int(value)
        if root := environment.get("COMPO_CLIP_IMAGE_ROOT"):
            given["root"] = Path(root).resolve()
            if not given["root"].is_dir():
                raise ValueError(f"COMPO_CLIP_IMAGE_ROOT is '{root}', expected a folder")
        return cls(**given)


class ImageTextModel(PythonModel):
    """Answers questions about images and texts with an exported open_clip folder."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the folder logged as the artefact `model`."""
        folder = f"local-dir:{context.artifacts['model']}"
        self.limits = Limits.of(os.environ)
        self.device = chosen_device(os.environ.get("COMPO_CLIP_DEVICE", "auto"))
        model, _, self.preprocess = open_clip.create_model_and_transforms(
            folder, device=self.device
        )
        self.model = model.eval()
        self.tokenize = open_clip.get_tokenizer(folder)
        self.tokenizing = threading.Lock()

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Answer row by row; equal images and equal texts are encoded once.

        Raises:
            Refused: naming the row or parameter, what was got and what is expected.
        """
        asked = checked(params or {}, self.limits)
        if len(model_input) > self.limits.rows:
            raise Refused(
                f"the table has {len(model_input)} rows, at most {self.limits.rows} are answered "
                "at once: split it, or raise COMPO_CLIP_MAX_ROWS where the model is loaded"
            )
        if not len(model_input.columns):
            raise Refused("the table has neither of the columns image and text")
        if not len(model_input):
            return pd.DataFrame()
        size = len(model_input) * answer_row(asked)
        if size > self.limits.answer:
            raise Refused(
                f"the answer would have about {size} bytes, at most {self.limits.answer} are sent: "
                "split the table, ask about fewer or shorter texts, or raise COMPO_CLIP_MAX_ANSWER "
                "where the model is loaded"
            )
        answer = getattr(self, f"_{asked['task']}")(model_input, asked)
        return pd.DataFrame(answer, index=model_input.index)

    def _score(self, table: pd.DataFrame, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not asked["texts"]:
            u, t = self._images(table), self._texts(column(table, "text"))
            return {"similarity": (u * t).sum(axis=1).astype(float)}
        if "text" in table:
            raise Refused("score compares with the column text or with params.texts, not both")
        return {"similarities": self._similarities(table, asked["texts"]).tolist()}

    def _embed(self, table: pd.DataFrame, asked: Mapping[str, Any]) -> dict[str, Any]:
        if ("image" in table) == ("text" in table):
            raise Refused("embed expects one of the columns image and text")
        vectors = self._images(table) if "image" in table else self._texts(column(table, "text"))
        return {"embedding": vectors.tolist()}

    def _rank(self, table: pd.DataFrame, asked: Mapping[str, Any]) -> dict[str, Any]:
        texts = asked["texts"]
        similarities = self._similarities(table, texts)
        orders = np.argsort(-similarities, axis=1, kind="stable")
        return {
            "texts": [[texts[k] for k in order] for order in orders],
            "similarities": np.take_along_axis(similarities, orders, axis=1).tolist(),
        }

    def _classify(self, table: pd.DataFrame, asked: Mapping[str, Any]) -> dict[str, Any]:
        labels, templates = asked["labels"], asked["templates"]
        # Counted before they are made: short labels and templates can make gigabytes of text.
        sizes = len(templates) * sum(map(len, labels)) + len(labels) * sum(map(len, templates))
        self._few_enough(sizes)
        prompts = self._texts([made.replace("{}", label) for label in labels for made in templates])
        means = prompts.reshape(len(labels), len(templates), -1).mean(axis=1)
        classes = means / np.linalg.norm(means, axis=1, keepdims=True)
        scale = self.model.logit_scale.exp().item()
        logits = scale * self._images(table).astype(float) @ classes.T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        return {
            "label": [labels[k] for k in probabilities.argmax(axis=1)],
            "probability": probabilities.max(axis=1),
            "probabilities": probabilities.tolist(),
        }

    def _similarities(self, table: pd.DataFrame, texts: Sequence[str]) -> Vectors:
        """[n, K]."""
        similarities: Vectors = self._images(table) @ self._texts(texts).T
        return similarities

    def _images(self, table: pd.DataFrame) -> Vectors:
        """[n, D]."""
        values = column(table, "image")
        first = {value: row for row, value in reversed(list(enumerate(values)))}
        return self._encode(values, lambda chunk: self._pixels(chunk, first), "encode_image")

    def _pixels(self, images: list[str], rows: Mapping[str, int]) -> torch.Tensor:
        pixels = []
        for image in images:
            try:
                pixels.append(self.preprocess(read_image(image, self.limits)))
            except Refused as error:
                shown = image if len(image) <= 60 else image[:57] + "..."
                raise Refused(f"row {rows[image]}: image '{shown}' {error}") from error
        return torch.stack(pixels)

    def _texts(self, texts: Sequence[str]) -> Vectors:
        """[K, D]."""
        self._few_enough(sum(map(len, texts)))
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as error:  # JSON can hold halves of characters
            raise Refused(f"a text is not Unicode: {error.reason}") from error
        return self._encode(texts, self._tokens, "encode_text")

    def _few_enough(self, characters: int) -> None:
        if characters > self.limits.characters:
            raise Refused(
                f"the texts have {characters} characters, at most {self.limits.characters} are "
                "read at once"
            )

    def _tokens(self, texts: list[str]) -> torch.Tensor:
        cache: dict[str, str] | None = getattr(self.tokenize, "cache", None)
        if cache is not None:
            # As the tokenizer cleans it: that can join what stands apart in a request.
            for word in (word for text in texts for word in self.tokenize.clean_fn(text).split()):
                if len(word) > LONGEST_WORD:
                    raise Refused(
                        f"'{word[:20]}...' has {len(word)} characters without a space, at most "
                        f"{LONGEST_WORD} are read"
                    )
        # Requests come in threads of one process, and tokenizers are not made for that.
        with self.tokenizing:
            tokens: torch.Tensor = self.tokenize(texts)
            for word in list(cache or {})[WORDS_KEPT:]:
                self.tokenize.cache.pop(word)
        return tokens

    def _encode(
        self, items: Sequence[str], prepare: Callable[[list[str]], torch.Tensor], encode: str
    ) -> Vectors:
        """Normalised embeddings of items, a row for each."""
        places, distinct = pd.factorize(np.array(items, dtype=object))
        with torch.inference_mode():
            parts = [
                getattr(self.model, encode)(
                    prepare(distinct[start : start + CHUNK].tolist()).to(self.device),
                    normalize=True,
                )
                for start in range(0, len(distinct), CHUNK)
            ]
        vectors: Vectors = torch.cat(parts).float().cpu().numpy()[places]
        return vectors


def chosen_device(name: str) -> str:
    """The device that COMPO_CLIP_DEVICE names; `auto` is CUDA where there is a GPU, else the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(
            f"COMPO_CLIP_DEVICE is '{name}', which is not there; expected auto, cpu, cuda, "
            "cuda:<n> or mps"
        ) from None
    return name


def checked(params: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The parameters of a request with their defaults.

    Raises:
        Refused: the task is unknown, lacks a parameter or does not know one, or there are too many
            texts.
    """
    asked = {**PARAMS, **{k: v for k, v in params.items() if v is not None}}
    task = asked["task"]
    if task not in TAKES:
        raise Refused(f"params.task is '{task}', expected one of {', '.join(TAKES)}")
    for name in ("texts", "labels", "templates"):
        values = asked[name] = list(asked[name])
        if name not in TAKES[task]:
            if values != PARAMS[name]:
                raise Refused(f"params.{name} means nothing to the task {task}")
        elif not values and task != "score":
            raise Refused(f"the task {task} expects params.{name}, a list of texts")
        elif not all(isinstance(value, str) and value.strip() for value in values):
            raise Refused(f"params.{name} holds an empty text")
    if task == "classify" and any(made.count("{}") != 1 for made in asked["templates"]):
        raise Refused("each of params.templates needs one {}, where the label goes")
    count = len(asked["labels"]) * len(asked["templates"]) or len(asked["texts"])
    if count > limits.texts:
        raise Refused(
            f"params hold {count} texts (labels times templates), at most {limits.texts} are read: "
            "ask several times, or raise COMPO_CLIP_MAX_TEXTS where the model is loaded"
        )
    return asked


def answer_row(asked: Mapping[str, Any]) -> int:
    """Bytes of a row's answer in JSON, at most, but for what is as long whatever is asked."""
    texts, labels = asked["texts"], asked["labels"]
    repeated = len(json.dumps(texts)) if asked["task"] == "rank" else 0
    label = max((len(json.dumps(label)) for label in labels), default=0)
    return NUMBER * len(texts or labels) + repeated + label


def column(table: pd.DataFrame, name: str) -> list[str]:
    """A column of the input, every row filled.

    Raises:
        Refused: there is none, or a row is empty; names the row.
    """
    if name not in table:
        raise Refused(f"the table has no column {name}")
    values: list[str] = table[name].tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise Refused(f"row {row}: {name} is empty, or not a text")
    return values


def read_image(value: str, limits: Limits) -> Image.Image:
    """Decode one image.

    Raises:
        Refused: it is no image that can be read, or too large.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(_read(value, limits)), formats=FORMATS)
        if image.width * image.height > limits.pixels:
            raise Refused(
                f"has {image.width} x {image.height} pixels, at most {limits.pixels} are read"
            )
        if image.mode in ("F", "I") or image.mode.startswith("I;"):
            # Pillow would cut off all above 255: an almost white image.
            raise Refused(f"has the mode {image.mode}, expected 8 bits a channel")
        image.load()
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
        return (image if turn is None else image.transpose(turn)).convert("RGB")
    except Refused:
        raise
    except UnidentifiedImageError:
        raise Refused(f"is no image, expected one of {', '.join(FORMATS)}") from None
    except Exception as error:
        # Decoders raise whatever broken bytes lead them to.
        raise Refused(f"cannot be decoded: {error}") from error


def _read(value: str, limits: Limits) -> bytes:
    path = _below(limits.root, value)
    # Four characters of base64 carry three bytes.
    size = len(value) * 3 // 4 if path is None else path.stat().st_size
    if size > limits.bytes:
        raise Refused(f"has {size} bytes, at most {limits.bytes} are read")
    if path is not None:
        return path.read_bytes()
    if "://" in value[:32]:
        raise Refused("is a URL, and none is fetched: send the image itself, as base64")
    encoded = value.partition(",")[2] if value.startswith("data:") else value
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except ValueError:
        unset = " (which is not set)" if limits.root is None else ""
        raise Refused(
            "is neither base64, nor a data URI, nor the path of a file below COMPO_CLIP_IMAGE_ROOT"
            + unset
        ) from None


def _below(root: Path | None, value: str) -> Path | None:
    """The file of that name below the root, if it is one; links must not lead out."""
    if root is None or len(value) > LONGEST_PATH:
        return None
    try:
        path = (root / value).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # link loops, null characters
        return None


set_model(ImageTextModel())
