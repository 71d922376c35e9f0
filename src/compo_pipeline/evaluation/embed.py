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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from compo_pipeline.benchmarks.items import ImagePlace, Subtask
from compo_pipeline.core.compute import Compute, in_order
from compo_pipeline.core.progress import track
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.stores import TensorStore
from compo_pipeline.core.untrusted import shown
from compo_pipeline.data.images.decoding import ImageError
from compo_pipeline.data.images.decoding import load as load_image
from compo_pipeline.evaluation.settings import EvaluationSettings
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
        """Vectors of groups of names: [groups, names, D].

        All groups have the same length.
        """
        picked: NDArray[np.float32] = self.rows[self.places_of(groups)]
        return picked

    def places_of(self, groups: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        """Rows of groups of names: [groups, names]. All groups have the same length."""
        flat = np.fromiter(map(self.index.__getitem__, chain.from_iterable(groups)), np.int64)
        return flat.reshape(len(groups), -1)


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
    unmeasured: ClassVar[Mapping[str, str]] = {}
    """Protocols that cannot be scored, and what to say of them."""

    def similarities(
        self, images: NDArray[np.int64], texts: NDArray[np.int64]
    ) -> NDArray[np.floating]:
        """Cosines of images and texts, given by their rows in arrays that broadcast."""
        cosines: NDArray[np.float32] = (self.images.rows[images] * self.texts.rows[texts]).sum(-1)
        return cosines

    def problems(self, subtask: Subtask) -> dict[str, str]:
        """Items of a subtask with an image that could not be read, by name, and the reasons."""
        return {
            item.item: self.unreadable[path]
            for item in (subtask.items if self.unreadable else ())
            for path in reversed(subtask.paths(item))  # the first one's reason
            if path in self.unreadable
        }


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
    # Of the last tower without its projection: a row of each distinct image; the hash by path.
    _trunk: str | None = None
    _pooled: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    _keys: Mapping[str, str] = field(default_factory=dict)
    _unreadable: Mapping[str, str] = field(default_factory=dict)
    _tokens: dict[tuple[str, int], Tokens] = field(default_factory=dict)

    def __call__(self, loaded: LoadedModel, name: str) -> Embedded:
        """Embeddings under one model.

        `name` is its name in progress lines.

        Raises:
            SettingsError: a folder has no readable image, or an embedding is not finite.
        """
        images = self._encode_images(loaded, name)
        tokenizer = (tokenizer_fingerprint(loaded.tokenize), loaded.context_length)
        if tokenizer not in self._tokens:
            every = dict.fromkeys(text for task in self.subtasks for text in task.texts())
            self._tokens[tokenizer] = tokenize_texts(list(every), loaded.tokenize)
        tokens, unreadable = self._tokens[tokenizer], self._unreadable
        needed = dict.fromkeys(text for task in self.subtasks for text in task.texts(unreadable))
        texts = self._encode_texts(loaded, name, tokens, list(needed))
        return Embedded(images, unreadable, texts, tokens)

    @torch.inference_mode()
    def _encode_images(self, loaded: LoadedModel, name: str) -> Vectors:
        """Vectors of all images: pooled outputs of the tower, projected."""
        projection, trunk = image_projection(loaded.model), loaded.image_fingerprint
        if projection is not None:
            state = loaded.model.state_dict()
            trunk = image_fingerprint(state, loaded.config, without=projection[1])
        compute = Compute(loaded.device, self.settings.precision)
        if trunk != self._trunk:
            # Where the projection is not known to come last, all of the tower is the trunk.
            pool = encode_images if projection is None else pool_images
            self._pool_images(loaded, name, compute, pool, self._known(trunk, compute))
            self._trunk = trunk
        rows = self._pooled
        if projection is not None and len(rows):
            with compute.autocast():
                parts = torch.split(rows.to(loaded.device), self.settings.image_batch)
                rows = torch.cat([project_images(loaded.model, part) for part in parts]).cpu()
        return _vectors(self._keys, rows, name)

    def _pool_images(
        self,
        loaded: LoadedModel,
        name: str,
        compute: Compute,
        pool: Callable[[Any, Tensor], Tensor],
        known: TensorStore,
    ) -> None:
        """Encode each distinct image that has no stored row by a tower without its projection."""
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
        waiting: dict[str, Tensor] = {}  # inputs by key

        def encode() -> None:
            if waiting:
                pixels = torch.stack(list(waiting.values())).to(loaded.device)
                with compute.autocast():
                    known.add(waiting, {"embeddings": pool(loaded.model, pixels).cpu()})
                waiting.clear()

        what = f"{name}: encoding images"
        decoded = self._decode_images(loaded, wanted, known.rows)
        for path, found in track(decoded, len(wanted), what):
            if isinstance(found, str):
                unreadable[path] = found
                continue
            key, pixels = found
            keys[path] = key
            # Images of equal pixels may be several files, or rows of one.
            if pixels is not None and key not in known.rows:
                waiting.setdefault(key, pixels)
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
        self._pooled, self._keys, self._unreadable = _rows_of(known, keys), keys, unreadable

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
            key = pixels_hash(image)
            return key, None if key in known else loaded.preprocess(image)

        pool, ahead = ThreadPoolExecutor(self.settings.workers), 2 * self.settings.image_batch
        yield from zip(wanted, in_order(pool, prepare, wanted.values(), ahead), strict=True)

    @torch.inference_mode()
    def _encode_texts(
        self, loaded: LoadedModel, name: str, tokens: Tokens, texts: Sequence[str]
    ) -> Vectors:
        """Encode the distinct texts without a stored embedding, and return the vectors of all."""
        compute = Compute(loaded.device, self.settings.precision)
        known = self._known(loaded.fingerprint, compute)
        ids = tokens.ids[[tokens.index[text] for text in texts]]
        # Texts of equal tokens have one embedding: they tie exactly.
        keys = {
            text: hashlib.sha256(row.tobytes()).hexdigest()
            for text, row in zip(texts, ids.numpy(), strict=True)
        }
        missing = {key: row for row, key in enumerate(keys.values()) if key not in known.rows}
        own, rows = list(keys.values()), torch.tensor(list(missing.values()), dtype=torch.long)
        # Sorted by length: a batch is as long as its longest text.
        rows = rows[torch.argsort(_text_lengths(ids[rows]))]
        batches = torch.split(rows, TEXT_BATCH) if len(rows) else ()
        for chosen in track(batches, len(batches), f"{name}: encoding batches of texts"):
            with compute.autocast():
                encoded = encode_texts(loaded.model, ids[chosen].to(loaded.device)).cpu()
            known.add([own[row] for row in chosen.tolist()], {"embeddings": encoded})
        return _vectors(keys, _rows_of(known, keys), name)

    def _known(self, fingerprint: str, compute: Compute) -> TensorStore:
        """The store of a model's or tower's embeddings, by the hash of the input."""
        key = digest("embeddings", fingerprint, compute.precision, compute.device.type)
        return TensorStore(self.store / f"{key:016x}" if self.store else None)


def pixels_hash(image: Image) -> str:
    """SHA-256 of an image's size and pixels."""
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()


def _rows_of(known: TensorStore, keys: Mapping[str, str]) -> Tensor:
    """Rows [n, D] of the distinct inputs among named ones, by the hash of each.

    New ones are stored.
    """
    known.save()
    if not keys:
        return torch.empty(0, 1)
    return known.tensors()["embeddings"][[known.rows[key] for key in dict.fromkeys(keys.values())]]


def _vectors(keys: Mapping[str, str], rows: Tensor, model: str) -> Vectors:
    """Vectors of named inputs, from the hash of each input and the rows of distinct inputs.

    Raises:
        SettingsError: one is not finite, whose cosines would count as wrong answers.
    """
    distinct = {key: row for row, key in enumerate(dict.fromkeys(keys.values()))}
    index = {name: distinct[key] for name, key in keys.items()}
    spoilt = set((~rows.isfinite().all(dim=1)).nonzero().flatten().tolist())
    if name := next((name for name, row in index.items() if row in spoilt), None):
        raise SettingsError(
            f"model: the embedding of {shown(name)} under '{model}' is not finite; its weights "
            "cannot be scored"
        )
    return Vectors(rows.numpy(), index)


def tokenize_texts(texts: Sequence[str], tokenize: Any) -> Tokens:
    """Token ids of texts by an open_clip tokenizer, and which texts were truncated."""
    ids: Tensor = tokenize(list(texts))
    truncated = (lost_tokens(tokenize, texts, ids) > 0).numpy()
    return Tokens(ids, truncated, {text: place for place, text in enumerate(texts)})


def _text_lengths(ids: Tensor) -> Tensor:
    """Number of tokens [K] of each text, without repeated padding at the end."""
    return (ids != ids[:, -1:]).sum(dim=1)
