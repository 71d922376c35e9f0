"""Encode every distinct image and every distinct text once per model.

Models whose image tower is the same (base, control and a method that trains the text tower alone)
share one pass over the images, as do those whose towers differ in the projection alone. Embeddings
may be stored: by weights, precision and kind of device, and by the pixels of an image and the token
ids of a text.

n images, K texts, T token positions, W width of the image tower, D of the joint space.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compo_pipeline.benchmarks.items import ImagePlace, Item, Subtask
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.images.decoding import ImageError
from compo_pipeline.images.decoding import load as load_image
from compo_pipeline.models.encoding import (
    encode_images,
    encode_texts,
    image_projection,
    pool_images,
    project_images,
)
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.tokenizing import lost_tokens
from compo_pipeline.models.weights import image_fingerprint, tokenizer_fingerprint
from compo_pipeline.run.compute import Compute
from compo_pipeline.run.engines import in_order
from compo_pipeline.run.progress import track
from compo_pipeline.run.seeding import digest
from compo_pipeline.storage.stores import TensorStore
from compo_pipeline.storage.untrusted import shown

TEXT_BATCH = 512  # texts encoded at a time


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors [n, D], and the row of each name."""

    rows: NDArray[np.float32]
    index: Mapping[str, int]

    def rows_of(self, names: Iterable[str]) -> NDArray[np.float32]:
        """Vectors of the given names: [names, D]."""
        picked: NDArray[np.float32] = self.rows_of_groups([list(names)])[0]
        return picked

    def rows_of_groups(self, groups: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Vectors of groups of names: [groups, names, D]; all groups have the same length."""
        flat = np.array([self.index[name] for names in groups for name in names], dtype=np.int64)
        picked: NDArray[np.float32] = self.rows[flat.reshape(len(groups), -1)]
        return picked


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids [K, T] of distinct texts, and a mask [K] of the texts that were truncated."""

    ids: Tensor
    truncated: NDArray[np.bool_]
    index: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the images and texts of all benchmarks under one model.

    `images` is keyed by path; `unreadable` has the reason of each path without a vector.
    """

    images: Vectors
    unreadable: Mapping[str, str]
    texts: Vectors
    tokens: Tokens

    def problem(self, subtask: Subtask, item: Item) -> str | None:
        """Why an image of an item could not be read; None if all images were read."""
        if not self.unreadable:
            return None
        return next(filter(None, map(self.unreadable.get, subtask.paths(item))), None)


@dataclass(frozen=True, eq=False)
class _PooledImages:
    """Image features [n, W] of a tower before its projection, to be projected by other models.

    `rows` [n, W] of the paths of `keys`; `trunk` is the tower's fingerprint without the projection,
    `keys` the hash of each path's pixels, `unreadable` the reason of each path without one.
    """

    trunk: str
    rows: Tensor
    keys: Mapping[str, str]
    unreadable: Mapping[str, str]


@dataclass
class Embedder:
    """Encodes the images and texts of subtasks for one model after another.

    Attributes:
        subtasks: everything that will be scored.
        settings: batch sizes, precision, threads.
        store: folder where embeddings are stored for later runs; None stores none.
    """

    subtasks: Sequence[Subtask]
    settings: EvaluationSettings
    store: Path | None = None
    _images: dict[str, tuple[Vectors, Mapping[str, str]]] = field(default_factory=dict)
    _pooled: _PooledImages | None = None
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
            self._tokens[tokenizer] = tokenize_texts(list(every), loaded.tokenize)
        tokens = self._tokens[tokenizer]
        needed = dict.fromkeys(text for task in self.subtasks for text in task.texts(unreadable))
        texts = self._encode_texts(loaded, name, tokens, list(needed))
        return Embedded(images, unreadable, texts, tokens)

    def _encode_images(self, loaded: LoadedModel, name: str) -> tuple[Vectors, Mapping[str, str]]:
        """Encode all images, or project stored features; returns vectors and read errors."""
        known = self._known(loaded, loaded.image_fingerprint, self.settings.image_precision)
        projection, trunk = image_projection(loaded.model), None
        if projection is not None:
            state = loaded.model.state_dict()
            trunk = image_fingerprint(state, loaded.config, without=projection[1])
        if self._pooled is not None and self._pooled.trunk == trunk:
            return self._project_images(loaded, name, known, self._pooled)
        wanted: dict[str, ImagePlace] = {}
        # A file may be of several: retrieval names COCO's, SugarCrepe its val2017.
        folders: defaultdict[Path, set[str]] = defaultdict(set)
        for place in (
            p for task in self.subtasks for item in task.items for p in task.image_locations(item)
        ):
            path = f"{place[0]}/{place[1]}"
            wanted[path] = place
            folders[place[0]].add(path)
        keys: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        waiting: dict[str, tuple[str, Tensor]] = {}  # path and input, by key
        pooled: dict[str, Tensor] = {}  # by key

        def encode() -> None:
            if waiting:
                paths, inputs = zip(*waiting.values(), strict=True)
                embeddings, rows = self._forward(loaded, inputs, pools=trunk is not None)
                _add(known, name, paths, keys, embeddings)
                pooled.update(zip(waiting, rows, strict=True))
                waiting.clear()

        what = f"{name}: encoding images"
        for path, found in track(
            self._decode_images(loaded, wanted, known.rows), len(wanted), what
        ):
            if isinstance(found, str):
                unreadable[path] = found
                continue
            key, pixels = found
            keys[path] = key
            # Images of equal pixels may be several files, or rows of one.
            if pixels is not None and key not in known.rows:
                waiting.setdefault(key, (path, pixels))
            if len(waiting) == self.settings.image_batch:
                encode()
        encode()
        for folder, paths in folders.items():
            if paths.isdisjoint(keys):
                path = min(paths)
                raise SettingsError(
                    f"benchmarks.images: none of the images below {folder} that the items name "
                    f"can be read (such as {path}: {unreadable[path]})"
                )
        # Of stored embeddings there are no pooled images.
        if trunk is not None and pooled.keys() >= set(keys.values()):
            rows = torch.stack([pooled[key] for key in keys.values()])
            self._pooled = _PooledImages(trunk, rows, keys, unreadable)
        return _vectors(known, keys), unreadable

    def _project_images(
        self, loaded: LoadedModel, name: str, known: TensorStore, pooled: _PooledImages
    ) -> tuple[Vectors, Mapping[str, str]]:
        """Project the stored pooled features of all images by a model's own projection."""
        new = {key: row for row, key in enumerate(pooled.keys.values()) if key not in known.rows}
        paths = list(pooled.keys)
        for rows in torch.split(torch.tensor(list(new.values())), self.settings.image_batch):
            with torch.inference_mode(), self._image_compute(loaded):
                embeddings = project_images(loaded.model, pooled.rows[rows].to(loaded.device))
            _add(known, name, [paths[row] for row in rows.tolist()], pooled.keys, embeddings.cpu())
        return _vectors(known, pooled.keys), pooled.unreadable

    def _decode_images(
        self, loaded: LoadedModel, wanted: Mapping[str, ImagePlace], known: Container[str]
    ) -> Iterator[tuple[str, tuple[str, Tensor | None] | str]]:
        """Yield each image's pixel hash and, for a new image, its input tensor, or its read error.

        Threads work a batch ahead.
        """

        def prepare(place: ImagePlace) -> tuple[str, Tensor | None] | str:
            try:
                image = load_image(*place)
            except ImageError as error:
                return str(error)
            key = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()
            return key, None if key in known else loaded.preprocess(image)

        with ThreadPoolExecutor(self.settings.workers) as pool:
            ready = in_order(pool, prepare, wanted.values(), 2 * self.settings.image_batch)
            yield from zip(wanted, ready, strict=True)

    @torch.inference_mode()
    def _forward(
        self, loaded: LoadedModel, inputs: Sequence[Tensor], *, pools: bool
    ) -> tuple[Tensor, Iterable[Tensor]]:
        """Encode a batch of images: embeddings [n, D], and features before the projection [n, W].

        The latter are empty where the tower's projection is not known.
        """
        pixels = torch.stack(list(inputs)).to(loaded.device)
        with self._image_compute(loaded):
            if not pools:
                return encode_images(loaded.model, pixels).cpu(), [torch.empty(0)] * len(inputs)
            pooled = pool_images(loaded.model, pixels)
            return project_images(loaded.model, pooled).cpu(), pooled.cpu()

    def _image_compute(self, loaded: LoadedModel) -> AbstractContextManager[Any]:
        """Context manager: autocast to the precision in which images are encoded."""
        return Compute(loaded.device, self.settings.image_precision).autocast()

    @torch.inference_mode()
    def _encode_texts(
        self, loaded: LoadedModel, name: str, tokens: Tokens, texts: Sequence[str]
    ) -> Vectors:
        """Encode the distinct texts that have no stored embedding; returns the vectors of all."""
        device = loaded.device
        known = self._known(loaded, loaded.fingerprint, self.settings.text_precision)
        ids = tokens.ids[[tokens.index[text] for text in texts]]
        # Texts of equal tokens have one embedding: they tie exactly.
        keys = {
            text: hashlib.sha256(row.tobytes()).hexdigest()
            for text, row in zip(texts, ids.numpy(), strict=True)
        }
        missing = {key: row for row, key in enumerate(keys.values()) if key not in known.rows}
        rows = torch.tensor(list(missing.values()), dtype=torch.long)
        # Sorted by length: a batch is as long as its longest text.
        rows = rows[torch.argsort(_text_lengths(ids[rows]))]
        batches = torch.split(rows, TEXT_BATCH) if len(rows) else ()
        for chosen in track(batches, len(batches), f"{name}: encoding batches of texts"):
            with Compute(device, self.settings.text_precision).autocast():
                encoded = encode_texts(loaded.model, ids[chosen].to(device)).cpu()
            _add(known, name, [texts[row] for row in chosen.tolist()], keys, encoded)
        return _vectors(known, keys)

    def _known(self, loaded: LoadedModel, fingerprint: str, precision: str) -> TensorStore:
        """The store of a model's or image tower's embeddings, by the hash of what is embedded."""
        key = digest("embeddings", fingerprint, precision, loaded.device.type)
        return TensorStore(self.store / f"{key:016x}" if self.store else None)


def _add(
    known: TensorStore,
    model: str,
    names: Iterable[str],
    keys: Mapping[str, str],
    embeddings: Tensor,
) -> None:
    """Add the embeddings [n, D] of n images or texts, under the hash of each.

    Raises:
        SettingsError: one is not finite, whose cosines would count as wrong answers.
    """
    for name, finite in zip(names, embeddings.isfinite().all(dim=1).tolist(), strict=True):
        if not finite:
            raise SettingsError(
                f"model: the embedding of {shown(name)} under '{model}' is not finite; "
                "its weights cannot be scored"
            )
    known.add([keys[name] for name in names], {"embeddings": embeddings})


def _vectors(known: TensorStore, keys: Mapping[str, str]) -> Vectors:
    """The embeddings of named inputs, found by the hash of each; stores new ones."""
    known.save()
    if not keys:
        return Vectors(np.empty((0, 1), dtype=np.float32), {})
    distinct = {key: row for row, key in enumerate(dict.fromkeys(keys.values()))}
    rows = known.tensors()["embeddings"][[known.rows[key] for key in distinct]]
    return Vectors(rows.numpy(), {name: distinct[key] for name, key in keys.items()})


def tokenize_texts(texts: Sequence[str], tokenize: Any) -> Tokens:
    """Token ids of texts by an open_clip tokenizer, and which texts were truncated."""
    ids: Tensor = tokenize(list(texts))
    truncated = (lost_tokens(tokenize, texts, ids) > 0).numpy()
    return Tokens(ids, truncated, {text: place for place, text in enumerate(texts)})


def _text_lengths(ids: Tensor) -> Tensor:
    """Number of tokens [K] of each text, without repeated padding at the end."""
    return (ids != ids[:, -1:]).sum(dim=1)
