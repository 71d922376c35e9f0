"""Encode every distinct image and every distinct text once per model.

Models whose image tower is the same (base, control and a method that trains the text tower alone)
share one pass over the images.

n images, K texts, T token positions, D width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compo_pipeline.compute import Compute
from compo_pipeline.configuration import SettingsError
from compo_pipeline.evaluation.benchmarks.items import ImagePlace, Item, Subtask
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import ImageError, Limits
from compo_pipeline.images.decoding import load as load_image
from compo_pipeline.models.encoding import encode_images, encode_texts
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.weights import tokenizer_fingerprint
from compo_pipeline.progress import track
from compo_pipeline.untrusted import shown


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors by name: `rows` [n, D], `index` the row of each name."""

    rows: NDArray[np.float32]
    index: Mapping[str, int]

    def of(self, names: Iterable[str]) -> NDArray[np.float32]:
        """[names, D]."""
        picked: NDArray[np.float32] = self.rows[self._places(names)]
        return picked

    def of_many(self, names: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """[names, names of each, D]; every entry must be of one length."""
        flat = self._places(name for group in names for name in group)
        picked: NDArray[np.float32] = self.rows[flat.reshape(len(names), -1)]
        return picked

    def _places(self, names: Iterable[str]) -> NDArray[np.int64]:
        return np.array([self.index[name] for name in names], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids [K, T] of distinct texts, and which texts were cut to fit [K]."""

    ids: Tensor
    truncated: NDArray[np.bool_]
    index: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Embedded:
    """One model's embeddings of a run's images and texts.

    `images` is keyed by path; `unreadable` has the reason of each path without a vector.
    """

    images: Vectors
    unreadable: Mapping[str, str]
    texts: Vectors
    tokens: Tokens

    def problem(self, subtask: Subtask, item: Item) -> str | None:
        """Why an image of an item could not be read; None if all could."""
        found = (self.unreadable.get(str(path)) for path in subtask.paths(item))
        return next(filter(None, found), None)


@dataclass
class Embedder:
    """Encodes the images and texts of a run's subtasks, model after model.

    Attributes:
        subtasks: everything that will be scored.
        settings: batch sizes, precision, threads.
    """

    subtasks: Sequence[Subtask]
    settings: EvaluationSettings
    _images: dict[str, tuple[Vectors, Mapping[str, str]]] = field(default_factory=dict)
    _tokens: dict[tuple[str, int], Tokens] = field(default_factory=dict)

    def __call__(self, loaded: LoadedModel, name: str) -> Embedded:
        """Embeddings under one model; `name` is its name in progress lines.

        Raises:
            SettingsError: a folder has no readable image, or an embedding is not finite.
        """
        if loaded.image_fingerprint not in self._images:
            # Only the last tower's: one that trains differs at each validation.
            self._images = {loaded.image_fingerprint: self._encode_images(loaded, name)}
        images, unreadable = self._images[loaded.image_fingerprint]
        tokenizer = (tokenizer_fingerprint(loaded.tokenize), loaded.context_length)
        if tokenizer not in self._tokens:
            every = dict.fromkeys(text for task in self.subtasks for text in task.texts())
            self._tokens[tokenizer] = tokenised(list(every), loaded.tokenize)
        tokens = self._tokens[tokenizer]
        needed = dict.fromkeys(text for task in self.subtasks for text in task.texts(unreadable))
        texts = self._encode_texts(loaded, name, tokens, list(needed))
        return Embedded(images, unreadable, texts, tokens)

    def _encode_images(self, loaded: LoadedModel, name: str) -> tuple[Vectors, Mapping[str, str]]:
        wanted = {
            str(place[0] / place[1]): place
            for task in self.subtasks
            for item in task.items
            for place in task.places(item)
        }
        rows: list[Tensor] = []
        index: dict[str, int] = {}
        unreadable: dict[str, str] = {}
        waiting: list[Tensor] = []
        what = f"{name}: encoding images"
        for path, found in track(self._decoded(loaded, wanted), len(wanted), what):
            if isinstance(found, str):
                unreadable[path] = found
                continue
            index[path] = len(index)
            waiting.append(found)
            if len(waiting) == self.settings.image_batch:
                rows.append(self._forward(loaded, torch.stack(waiting)))
                waiting = []
        if waiting:
            rows.append(self._forward(loaded, torch.stack(waiting)))
        readable = {root for path, (root, *_) in wanted.items() if path in index}
        for path, (root, *_) in wanted.items():
            if root not in readable:
                raise SettingsError(
                    f"benchmarks.images: none of the images below {root} that the items name can "
                    f"be read (such as {path}: {unreadable[path]})"
                )
        return Vectors(_stacked(rows, list(index), name), index), unreadable

    def _decoded(
        self, loaded: LoadedModel, wanted: Mapping[str, ImagePlace]
    ) -> Iterator[tuple[str, Tensor | str]]:
        """Images ready for the model, or why not; threads work a batch ahead."""

        def prepare(root: Path, relative: str, limits: Limits) -> Tensor | str:
            try:
                return loaded.preprocess(load_image(root, relative, limits))
            except ImageError as error:
                return str(error)

        ahead: deque[tuple[str, Future[Tensor | str]]] = deque()
        with ThreadPoolExecutor(self.settings.workers) as pool:
            for path, place in wanted.items():
                ahead.append((path, pool.submit(prepare, *place)))
                if len(ahead) > 2 * self.settings.image_batch:
                    ready, future = ahead.popleft()
                    yield ready, future.result()
            for ready, future in ahead:
                yield ready, future.result()

    @torch.inference_mode()
    def _forward(self, loaded: LoadedModel, inputs: Tensor) -> Tensor:
        device = loaded.device
        with Compute(device, self.settings.image_precision).autocast():
            return encode_images(loaded.model, inputs.to(device)).cpu()

    @torch.inference_mode()
    def _encode_texts(
        self, loaded: LoadedModel, name: str, tokens: Tokens, texts: Sequence[str]
    ) -> Vectors:
        device = loaded.device
        ids = tokens.ids[[tokens.index[text] for text in texts]]
        # Sorted by length: a batch is as long as its longest text.
        order = torch.argsort(_lengths(ids))
        rows = []
        batches = torch.split(order, self.settings.text_batch)
        for chosen in track(batches, len(batches), f"{name}: encoding batches of texts"):
            with Compute(device, self.settings.text_precision).autocast():
                rows.append(encode_texts(loaded.model, ids[chosen].to(device)).cpu())
        places = {texts[place]: row for row, place in enumerate(order.tolist())}
        return Vectors(_stacked(rows, list(places), name), places)


def tokenised(texts: Sequence[str], tokenize: Any) -> Tokens:
    """Token ids of texts under an open_clip tokenizer, and which of them were truncated."""
    ids: Tensor = tokenize(list(texts))
    truncated = np.zeros(len(texts), dtype=np.bool_)
    padding = tokenize([""])[0, -1]
    # A text that may be truncated has no padding, and differs with a longer context.
    full = torch.nonzero(ids[:, -2] != padding).flatten().tolist()
    if full:
        roomy = tokenize([texts[k] for k in full], context_length=2 * ids.shape[1])
        truncated[full] = (roomy[:, : ids.shape[1]] != ids[full]).any(dim=1).numpy()
    return Tokens(ids, truncated, {text: place for place, text in enumerate(texts)})


def _lengths(ids: Tensor) -> Tensor:
    """[K], where each text ends: its last token id that is not repeated padding."""
    return (ids != ids[:, -1:]).sum(dim=1)


def _stacked(batches: Sequence[Tensor], names: Sequence[str], model: str) -> NDArray[np.float32]:
    """Batches of embeddings as one array; `names` are those of its rows.

    Raises:
        SettingsError: one is not finite, whose cosines would count as wrong answers.
    """
    if not batches:
        return np.empty((0, 1), dtype=np.float32)
    array: NDArray[np.float32] = torch.cat(list(batches)).numpy()
    broken = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(broken):
        raise SettingsError(
            f"model: the embeddings of '{model}' are not finite for {len(broken)} of {len(array)} "
            f"inputs (such as {shown(names[broken[0]])}); its weights cannot be scored"
        )
    return array
