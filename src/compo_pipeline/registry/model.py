"""The served model. MLflow runs this file (models from code) beside `compo_decoding`, which it
imports, and imports no compo_pipeline.

The input is a table with the column `image`, the column `text`, or both; `params` has the task and
the values common to all rows. The output has a row for each input row, in the same order:

    score     image and text               similarity
              image, params.texts          similarities, one for each text
    embed     image or text                embedding, of length 1
    rank      image, params.texts          texts and their similarities, best first
    classify  image, params.labels,        label and probability of the likeliest label,
              params.templates             probabilities of all labels

A similarity is a cosine. An image is base64, a data URI or, if COMPO_CLIP_IMAGE_ROOT names a
folder, the path of a file below it; never a URL. It is decoded as in training: upright, in 8-bit
RGB (of 16 bits the upper 8), without its transparency, the first frame of several.

n rows, K texts, D width of the embeddings.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import reprlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import open_clip
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import (
    DEADLINE_EXCEEDED,
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
)
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from compo_decoding import FORMATS, upright_rgb

Vectors: TypeAlias = NDArray[np.float32]
# Inputs of a tower [B, ...] to embeddings [B, D], of length 1.
Encoder: TypeAlias = Callable[[torch.Tensor], Vectors]
# Columns of an answer, and the vectors of `Answered`, by their names.
_Computed: TypeAlias = tuple[dict[str, Any], dict[str, Vectors]]

# All parameters with their defaults.
PARAMS: dict[str, Any] = {
    "task": "score",
    "texts": [],
    "labels": [],
    "templates": ["a photo of a {}."],
}
# The parameters of each task.
TASK_PARAMS = {
    "score": ("texts",),
    "embed": (),
    "rank": ("texts",),
    "classify": ("labels", "templates"),
}
# What a cell of each column holds.
CELLS = {
    "image": "base64, a data URI, or the path of a file below COMPO_CLIP_IMAGE_ROOT",
    "text": "a text",
}
CHUNK = 64
_URL_SAFE = str.maketrans("-_", "+/")
# Longer texts are not looked up as paths.
MAX_PATH = 1024
# open_clip's tokenizer takes time in the square of a word's length, and caches each word.
MAX_WORD = 64
MAX_CACHED_WORDS = 50_000
# Longer texts are not put into the cache of embeddings, which are as large as some of them.
MAX_CACHED_TEXT = 1000
# Images decoded at once: each may have `RequestLimits.pixels` pixels.
DECODED = 4
# Bytes of the longest number in JSON: -7.638926914230008e-05 and its separator.
NUMBER_BYTES = 24
# When the request of this thread runs out of time, in seconds of time.monotonic, and what it had.
_DEADLINE: ContextVar[tuple[float, int]] = ContextVar("deadline")

log = logging.getLogger(__name__)


class RequestError(MlflowException):
    """Exception for a request that gets no answer, with MLflow's code for its HTTP status."""

    def serialize_as_json(self) -> str:
        """The JSON of code and message, without the request's data that MLflow would add."""
        return json.dumps({"error_code": self.error_code, "message": self.args[0]})


class InvalidRequest(RequestError):
    """Exception for a request that is refused with HTTP 400."""

    def __init__(self, reason: str) -> None:
        """Create the error with its message."""
        super().__init__(reason, error_code=INVALID_PARAMETER_VALUE)


@dataclass(frozen=True)
class RequestLimits:
    """Size limits of one request.

    Attributes:
        rows: most rows of the table.
        texts: most texts of the parameters (labels times templates).
        characters: most characters of all texts together.
        answer: bytes of the output in JSON, without parts of constant size per row.
        bytes: most bytes of one encoded image.
        pixels: most pixels of one image, by its header.
        seconds: most seconds of computing, checked between images and between batches.
        root: the only folder for images (COMPO_CLIP_IMAGE_ROOT).
    """

    rows: int = 1000
    texts: int = 1024
    characters: int = 200_000
    answer: int = 30_000_000
    bytes: int = 20_000_000
    pixels: int = 50_000_000
    seconds: int = 60
    root: Path | None = None


@dataclass(frozen=True)
class Answered:
    """The answer to a request, and the normalised embeddings that it was computed from.

    Attributes:
        output: a row for each row of the table.
        task: task of the request.
        images: embeddings of the column image [n, D]; None if it was not read.
        texts: embeddings of the candidates [K, D] or, without candidates, of the column text
            [n, D]; None if no text was read. A label's is the normalised mean over the templates.
        similarities: cosines of images and candidates [n, K] or, without candidates, of the pairs
            [n]; None for `embed`.
        candidates: the texts or labels that each image was compared with, if any.
    """

    output: pd.DataFrame
    task: str
    images: Vectors | None = None
    texts: Vectors | None = None
    similarities: Vectors | None = None
    candidates: list[str] | None = None


class ImageTextModel(PythonModel):
    """MLflow model that scores, embeds, ranks and classifies with an exported open_clip model."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the open_clip folder that is the artefact `model` of the MLflow model."""
        folder = f"local-dir:{context.artifacts['model']}"
        root = os.environ.get("COMPO_CLIP_IMAGE_ROOT")
        limits = RequestLimits(root=None if root is None else Path(root).resolve())
        device = os.environ.get("COMPO_CLIP_DEVICE", "auto")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model, _, preprocess = open_clip.create_model_and_transforms(folder, device=device)
        self.use(model.eval(), preprocess, open_clip.get_tokenizer(folder), limits)

    def use(
        self,
        model: torch.nn.Module,
        preprocess: Callable[[Image.Image], torch.Tensor],
        tokenize: Callable[[list[str]], torch.Tensor],
        limits: RequestLimits,
    ) -> None:
        """Set the model, image transform, tokenizer and limits with which requests are answered.

        A server may then put others in the place of `encoders`, and of `cache`.
        """
        self.model: Any = model
        self.encoders: dict[str, Encoder] = {
            tower: partial(_embeddings, self.model, f"encode_{tower}")
            for tower in ("image", "text")
        }
        self.cache: MutableMapping[str, Vectors] | None = None
        self.cache_lock = threading.Lock()
        self.preprocess = preprocess
        self.decoding = threading.Semaphore(DECODED)
        self.tokenize: Any = tokenize
        self.tokenizer_lock = threading.Lock()
        self.limits = limits

    def predict(
        self,
        context: PythonModelContext | None,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """The output table of `answer`.

        MLflow calls this method.
        """
        return self.answer(model_input, params).output

    def answer(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> Answered:
        """Answer a request's table row by row.

        Equal images and equal texts are encoded once.

        Raises:
            InvalidRequest: names the row or parameter, the value and what is expected.
            RequestError: it takes too long, or the fault is not the request's.
        """
        _DEADLINE.set((time.monotonic() + self.limits.seconds, self.limits.seconds))
        try:
            return self._answer(table, params)
        except RequestError:
            raise
        except Exception:
            # MLflow's server would send the traceback to the client.
            log.exception("A request failed.")
            reason = "the server could not answer; its log says why"
            raise RequestError(reason, error_code=INTERNAL_ERROR) from None

    def _answer(self, table: pd.DataFrame, params: dict[str, Any] | None) -> Answered:
        """Validate a request, refuse one that is too large, and compute its answer."""
        request = checked(params or {}, self.limits)
        if len(table) > self.limits.rows:
            raise InvalidRequest(
                f"the table has {len(table)} rows, at most {self.limits.rows} are answered "
                "at once: split it"
            )
        if not len(table.columns):
            raise InvalidRequest("the table has neither of the columns image and text")
        if not len(table):
            return Answered(pd.DataFrame(), request["task"])
        size = len(table) * row_bytes(request)
        if size > self.limits.answer:
            raise InvalidRequest(
                f"the answer would have about {size} bytes, at most {self.limits.answer} are sent: "
                "split the table, or send fewer or shorter texts"
            )
        tasks = {
            "score": self._score,
            "embed": self._embed,
            "rank": self._rank,
            "classify": self._classify,
        }
        columns, computed = tasks[request["task"]](table, request)
        output = pd.DataFrame(columns, index=table.index)
        candidates = request["texts"] or request["labels"] or None
        return Answered(output, request["task"], **computed, candidates=candidates)

    def _score(self, table: pd.DataFrame, request: Mapping[str, Any]) -> _Computed:
        """Cosine similarity of each row's image with its text, or with each of `texts`."""
        texts = request["texts"]
        if texts and "text" in table:
            raise InvalidRequest(
                "score compares with the column text or with params.texts, not both"
            )
        u, t = self._images(table), self._texts(texts or column(table, "text"))
        similarities = u @ t.T if texts else (u * t).sum(axis=1)
        columns = (
            {"similarities": similarities.tolist()}
            if texts
            else {"similarity": similarities.astype(float)}
        )
        return columns, {"images": u, "texts": t, "similarities": similarities}

    def _embed(self, table: pd.DataFrame, request: Mapping[str, Any]) -> _Computed:
        """Normalised embeddings of the table's images or of its texts."""
        if ("image" in table) == ("text" in table):
            raise InvalidRequest("embed expects one of the columns image and text")
        if "image" in table:
            computed = {"images": self._images(table)}
        else:
            computed = {"texts": self._texts(column(table, "text"))}
        (vectors,) = computed.values()
        return {"embedding": vectors.tolist()}, computed

    def _rank(self, table: pd.DataFrame, request: Mapping[str, Any]) -> _Computed:
        """The texts of the parameter `texts` for each image, most similar first."""
        texts = request["texts"]
        u, t = self._images(table), self._texts(texts)
        similarities = u @ t.T
        orders = np.argsort(-similarities, axis=1, kind="stable")
        columns = {
            "texts": [[texts[k] for k in order] for order in orders],
            "similarities": np.take_along_axis(similarities, orders, axis=1).tolist(),
        }
        return columns, {"images": u, "texts": t, "similarities": similarities}

    def _classify(self, table: pd.DataFrame, request: Mapping[str, Any]) -> _Computed:
        """Zero-shot classification: probabilities of the labels for each image."""
        labels, templates = request["labels"], request["templates"]
        # Before the prompts exist: short labels and templates can give gigabytes of text.
        sizes = len(templates) * sum(map(len, labels)) + len(labels) * sum(map(len, templates))
        self._check_length(sizes)
        prompts = self._texts(
            [template.replace("{}", label) for label in labels for template in templates]
        )
        means = prompts.reshape(len(labels), len(templates), -1).mean(axis=1)
        classes = means / np.linalg.norm(means, axis=1, keepdims=True)
        images = self._images(table)
        similarities = images.astype(float) @ classes.T
        logits = self.model.logit_scale.exp().item() * similarities
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        columns = {
            "label": [labels[k] for k in probabilities.argmax(axis=1)],
            "probability": probabilities.max(axis=1),
            "probabilities": probabilities.tolist(),
        }
        return columns, {"images": images, "texts": classes, "similarities": similarities}

    def _images(self, table: pd.DataFrame) -> Vectors:
        """Normalised embeddings [n, D] of the images in the column `image`."""
        values = column(table, "image")
        first: dict[str, int] = {}
        for row, value in enumerate(values):
            first.setdefault(value, row)
        return self._encode(values, lambda chunk: self._pixels(chunk, first), "image")

    def _pixels(self, images: list[str], rows: Mapping[str, int]) -> torch.Tensor:
        """The decoded and preprocessed images [n, 3, H, W].

        An error names the table's row.
        """
        pixels = []
        for image in images:
            with self.decoding, _naming(image, rows[image]):
                check_time()
                pixels.append(self.preprocess(read_image(image, self.limits)))
        return torch.stack(pixels)

    def _texts(self, texts: Sequence[str]) -> Vectors:
        """Normalised embeddings [K, D] of texts, from the cache where it has them."""
        self._check_length(sum(map(len, texts)))
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as error:  # JSON can contain lone surrogates
            raise InvalidRequest(f"a text is not Unicode: {error.reason}") from error
        if self.cache is None:
            return self._encode(texts, self.tokens, "text")
        with self.cache_lock:
            found = {text: self.cache.get(text) for text in texts}
        vectors = {text: vector for text, vector in found.items() if vector is not None}
        if missing := [text for text in found if text not in vectors]:
            vectors |= zip(missing, self._encode(missing, self.tokens, "text"), strict=True)
            with self.cache_lock:
                for text in missing:
                    # A copy: a view would keep its whole batch.
                    with suppress(ValueError):  # larger than the cache
                        if len(text) <= MAX_CACHED_TEXT:
                            self.cache[text] = vectors[text].copy()
        return np.stack([vectors[text] for text in texts])

    def _check_length(self, characters: int) -> None:
        """Refuse a request whose texts together have more characters than the limit."""
        if characters > self.limits.characters:
            raise InvalidRequest(
                f"the texts have {characters} characters, at most {self.limits.characters} are "
                "read at once"
            )

    def tokens(self, texts: list[str]) -> torch.Tensor:
        """Token ids [K, T] of texts, padded.

        Refuses very long words.

        Raises:
            InvalidRequest: a word is too long.
        """
        cache: dict[str, str] | None = getattr(self.tokenize, "cache", None)
        if cache is not None:
            # After the tokenizer's cleaning, which can join words.
            for word in (word for text in texts for word in self.tokenize.clean_fn(text).split()):
                if len(word) > MAX_WORD:
                    raise InvalidRequest(
                        f"'{word[:20]}...' has {len(word)} characters without a space, at most "
                        f"{MAX_WORD} are read"
                    )
        # Requests run in threads of one process, and tokenizers are not thread-safe.
        with self.tokenizer_lock:
            tokens: torch.Tensor = self.tokenize(texts)
            for word in list(cache or {})[MAX_CACHED_WORDS:]:
                self.tokenize.cache.pop(word)
        return tokens

    def _encode(
        self, items: Sequence[str], prepare: Callable[[list[str]], torch.Tensor], tower: str
    ) -> Vectors:
        """Normalised embeddings [n, D] of images or texts.

        Equal inputs are encoded once.
        """
        places, distinct = pd.factorize(np.array(items, dtype=object))
        parts = []
        for start in range(0, len(distinct), CHUNK):
            check_time()
            parts.append(self.encoders[tower](prepare(distinct[start : start + CHUNK].tolist())))
        vectors: Vectors = np.concatenate(parts)[places]
        return vectors


@torch.inference_mode()
def _embeddings(model: torch.nn.Module, encode: str, inputs: torch.Tensor) -> Vectors:
    """Normalised embeddings of a batch of inputs by one tower, as a NumPy array in float32."""
    device = next(model.parameters()).device
    vectors: torch.Tensor = getattr(model, encode)(inputs.to(device), normalize=True)
    found: Vectors = vectors.float().cpu().numpy()
    return found


def checked(params: Mapping[str, Any], limits: RequestLimits) -> dict[str, Any]:
    """Check the parameters of a request and return them with the defaults filled in.

    Raises:
        InvalidRequest: the task or a parameter is unknown, one is missing or of another type, or
            there are too many texts.
    """
    for name in params:
        if name not in PARAMS:
            raise InvalidRequest(f"params.{name} is unknown, expected {', '.join(PARAMS)}")
    request = {**PARAMS, **{k: v for k, v in params.items() if v is not None}}
    task = request["task"]
    if not isinstance(task, str) or task not in TASK_PARAMS:
        raise InvalidRequest(f"params.task is '{task}', expected one of {', '.join(TASK_PARAMS)}")
    for name in ("texts", "labels", "templates"):
        if not isinstance(request[name], list | np.ndarray):
            raise InvalidRequest(f"params.{name} expects a list of texts")
        values = request[name] = list(request[name])
        if name not in TASK_PARAMS[task]:
            if values != PARAMS[name]:
                raise InvalidRequest(f"params.{name} is not a parameter of the task {task}")
        elif not values and task != "score":
            raise InvalidRequest(f"the task {task} expects params.{name}, a list of texts")
        elif not all(isinstance(value, str) and value.strip() for value in values):
            raise InvalidRequest(f"params.{name} holds an empty text, or what is no text")
    if task == "classify" and any(template.count("{}") != 1 for template in request["templates"]):
        raise InvalidRequest("each of params.templates needs one {}, where the label goes")
    count = len(request["labels"]) * len(request["templates"]) or len(request["texts"])
    if count > limits.texts:
        raise InvalidRequest(
            f"params hold {count} texts (labels times templates), at most {limits.texts} are read: "
            "send several requests"
        )
    return request


def row_bytes(request: Mapping[str, Any]) -> int:
    """Upper bound of the bytes of one output row in JSON, without parts of constant size."""
    texts, labels = request["texts"], request["labels"]
    repeated = len(json.dumps(texts)) if request["task"] == "rank" else 0
    label = max((len(json.dumps(label)) for label in labels), default=0)
    return NUMBER_BYTES * len(texts or labels) + repeated + label


def column(table: pd.DataFrame, name: str) -> list[str]:
    """The values of a table's column as a list.

    Refuses a missing column and values without text.

    Raises:
        InvalidRequest: it is missing, or a value is empty or of another type; names the row.
    """
    if name not in table:
        raise InvalidRequest(f"the table has no column {name}")
    values: list[str] = table[name].tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            shown = reprlib.repr(value)
            raise InvalidRequest(f"row {row}: {name} is {shown}, expected {CELLS[name]}")
    return values


@contextmanager
def _naming(image: str, row: int) -> Iterator[None]:
    """Context manager that adds the row and the image to the message of a refusal."""
    try:
        yield
    except InvalidRequest as error:
        shown = image if len(image) <= 60 else image[:57] + "..."
        raise InvalidRequest(f"row {row}: image '{shown}' {error}") from error


def check_time() -> None:
    """Raise an error if the time limit of this thread's request is over.

    Raises:
        RequestError: it is.
    """
    end, seconds = _DEADLINE.get()
    if time.monotonic() > end:
        reason = f"the answer would take more than {seconds} seconds: split the table"
        raise RequestError(reason, error_code=DEADLINE_EXCEEDED)


def read_image(value: str, limits: RequestLimits) -> Image.Image:
    """The upright RGB image that a table's cell holds or names.

    Raises:
        InvalidRequest: it is no image, too large, or cannot be decoded.
    """
    content = image_bytes(value, limits)
    try:
        return upright_rgb(open_image(content, limits))
    except InvalidRequest:
        raise
    except UnidentifiedImageError:
        raise InvalidRequest(f"is not an image, expected one of {', '.join(FORMATS)}") from None
    except Exception as error:
        # Decoders raise many kinds of errors on broken bytes.
        raise InvalidRequest(f"cannot be decoded: {error}") from error


def open_image(content: bytes, limits: RequestLimits) -> Image.Image:
    """Open an image's bytes and read only its header.

    Its pixels are not decoded.

    Raises:
        InvalidRequest: it is too large.
        UnidentifiedImageError: it is no image.
    """
    image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.width * image.height > limits.pixels:
        raise InvalidRequest(
            f"has {image.width} x {image.height} pixels, at most {limits.pixels} are read"
        )
    return image


def image_bytes(value: str, limits: RequestLimits) -> bytes:
    """The encoded bytes of an image that a table's cell holds as base64 or names by path.

    Raises:
        InvalidRequest: it is too large, or no image can be meant.
    """
    path = _below(limits.root, value)
    # Four characters of base64 carry three bytes.
    size = len(value) * 3 // 4 if path is None else path.stat().st_size
    if size > limits.bytes:
        raise InvalidRequest(f"has {size} bytes, at most {limits.bytes} are read")
    if path is not None:
        return path.read_bytes()
    if "://" in value[:32]:
        raise InvalidRequest("is a URL, and none is fetched: send the image itself, as base64")
    encoded = "".join(value.split())
    if encoded[:5].lower() == "data:":
        encoded = unquote(encoded.partition(",")[2])
    # URL-safe base64 is often sent without its padding.
    encoded = encoded.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        unset = " (which is not set)" if limits.root is None else ""
        raise InvalidRequest(f"cannot be read, expected {CELLS['image']}{unset}") from None


def _below(root: Path | None, value: str) -> Path | None:
    """Resolved path of a readable file below the root, or None.

    Links must not lead outside.
    """
    if root is None or len(value) > MAX_PATH:
        return None
    try:
        path = (root / value).resolve()
        readable = path.is_relative_to(root) and path.is_file() and os.access(path, os.R_OK)
        return path if readable else None
    except (OSError, RuntimeError, ValueError):  # link loops, null characters
        return None


set_model(ImageTextModel())
