"""Training batches: which rows a step gets, and their images and texts as tensors.

A step's batch is the same whenever and in whichever process it is asked for.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from compo_pipeline.images import composites, decoding
from compo_pipeline.images.crops import random_resized_crop
from compo_pipeline.methods.contract import Collated, Example, ImageInput, Method
from compo_pipeline.methods.views import EpochViews
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.records import Caption
from compo_pipeline.seeding import rng
from compo_pipeline.tables import Table
from compo_pipeline.training.ranks import ALONE, Ranks

log = logging.getLogger(__name__)

# Composites squash the same images again and again: this many bytes of halves are cached.
CACHED_BYTES = 64 * 2**20
# Tokens looked at behind a model's context: what is cut there is none that ends a cut text here.
BEYOND = 2


def deal(
    images: NDArray[np.int32], batch_size: int, seed: int, epoch: int
) -> tuple[NDArray[np.int32], int]:
    """Deal one epoch's rows into full batches; the remaining rows wait for another epoch.

    A batch holds an image at most once where the data allow: a second row of an image moves to
    the next batch, and an image with as many rows as there are batches left comes into each.

    Args:
        images: number of each row's image [n].
        batch_size: rows a batch, at most the number of rows.
        seed: of the order, with the epoch.
        epoch: number of the epoch.

    Returns:
        Row numbers [batches, batch_size], and how many rows had to join a batch that held their
        image already.
    """
    order = array("i", range(len(images)))
    rng(seed, "order", epoch).shuffle(order)
    rest, place = np.frombuffer(order, np.int32), 0
    earlier: deque[int] = deque()  # rows that were passed over come before the rest
    most = int(np.bincount(images).max(initial=0))
    batches = np.empty((len(images) // batch_size, batch_size), np.int32)
    repeated = 0
    for number, left in enumerate(range(len(batches), 0, -1)):
        if most >= left:
            waiting = np.concatenate([np.array(earlier, np.int32), rest[place:]])
            rest, place = _frequent_first(waiting, images, left), 0
            earlier.clear()
        batch: list[int] = []
        seen: set[int] = set()
        passed: list[int] = []
        while len(batch) < batch_size and (earlier or place < len(rest)):
            if earlier:
                row = earlier.popleft()
            else:
                row, place = int(rest[place]), place + 1
            image = int(images[row])
            if image in seen:
                passed.append(row)
            else:
                seen.add(image)
                batch.append(row)
        short = batch_size - len(batch)
        batches[number] = batch + passed[:short]
        repeated += short
        earlier.extendleft(reversed(passed[short:]))
    return batches, repeated


def _frequent_first(
    rows: NDArray[np.int32], images: NDArray[np.int32], left: int
) -> NDArray[np.int32]:
    """Rows in their order, but first those whose image must come into all `left` batches."""
    frequent = np.bincount(images[rows])[images[rows]] >= left
    return np.concatenate([rows[frequent], rows[~frequent]])


class _Dealt(NamedTuple):
    """An epoch's rows: batches of view numbers [batches, batch_size], how many of them are beside
    another of their image, and the caption number of each view [n].
    """

    batches: NDArray[np.int32]
    repeated: int
    captions: NDArray[np.int64]


class _Picklable:
    """Base of datasets with caches that do not travel to worker processes."""

    def _make_caches(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_cached")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._make_caches()


class Batches(_Picklable, Dataset[Collated]):
    """Batch of every step of a run.

    Args:
        captions: the training split.
        views: the views folder.
        method: collates.
        preprocessor: turns images and texts into tensors.
        batch_size: rows a step; smaller, with a warning, where there are fewer rows.
        epochs: passes over the rows.
        seed: of the order.
        max_steps: ends the run early.
        group: the batch is a multiple of so many rows.

    Raises:
        ValueError: the run would have no step, or views are of other captions.
    """

    def __init__(
        self,
        captions: Sequence[Caption],
        views: Path,
        method: Method,
        preprocessor: ModelPreprocessor,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        max_steps: int | None = None,
        group: int | None = None,
    ) -> None:
        self.captions = Table.of(captions, Caption)
        self._image_numbers = self.captions.codes("image_id")
        self.views, self.method, self.seed = EpochViews(views), method, seed
        self.preprocessor = preprocessor
        rows = len(self.views.epoch(0))
        if rows < (group or 2) or epochs < 1:
            raise ValueError(
                f"a run of zero steps: {rows} rows with a view, {epochs} epochs; "
                f"contrast needs {group or 'two'} rows (see quarantine for what was left out)"
            )
        shown = pc.unique(pc.list_flatten(self.views.epoch(0).column("sample_ids")))
        unknown = shown.filter(self.captions.places("sample_id", shown) < 0).to_pylist()
        if unknown:
            raise ValueError(
                f"{len(unknown)} samples of {views} are not among the captions ({min(unknown)}, "
                "...): the captions changed since; run "
                "`kedro run --pipelines=counterfactuals,views`"
            )
        if rows < batch_size:
            whole = rows - rows % (group or 1)
            log.warning("Batches shrink to %d: there are no more rows (not %d).", whole, batch_size)
            batch_size = whole
        self.batch_size = batch_size
        self.steps_per_epoch = rows // self.batch_size
        self.steps = epochs * self.steps_per_epoch
        if max_steps is not None:
            self.steps = min(self.steps, max_steps)
        self._make_caches()

    def _make_caches(self) -> None:
        self._cached_epoch = lru_cache(2)(self._deal_epoch)

    def __len__(self) -> int:
        return self.steps

    def _deal_epoch(self, epoch: int) -> _Dealt:
        anchors = self.views.epoch(epoch).column("sample_id")
        captions = self.captions.places("sample_id", anchors)
        images = self._image_numbers[captions]
        return _Dealt(*deal(images, self.batch_size, self.seed, epoch), captions)

    def examples(self, step: int) -> list[Example]:
        """The rows of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        views, dealt = self.views.epoch(epoch), self._cached_epoch(epoch)
        return [
            Example(self.captions[dealt.captions[row]], views[row]) for row in dealt.batches[index]
        ]

    def __getitem__(self, step: int) -> Collated:
        self.preprocessor.begin(self.seed, step)
        collated = self.method.collate(self.examples(step), step, self.preprocessor)
        return Collated(collated.batch, {**collated.counts, **self.counts(step)})

    def counts(self, step: int) -> dict[str, int]:
        """What is to report of a step that has been collated, whatever the method."""
        counts = {"truncated texts": self.preprocessor.take_truncated()}
        if step % self.steps_per_epoch == 0:
            repeated = self._cached_epoch(step // self.steps_per_epoch).repeated
            counts["rows beside another of their image"] = repeated
        return counts

    def images(self) -> list[ImageInput]:
        """Every image that the run shows, once, in order of first use."""
        shown: Counter[ImageInput] = Counter()
        for step in range(self.steps):
            for example in self.examples(step):
                shown.update(self.method.images(example, step))
        return list(shown)


class Groups(Dataset[Collated]):
    """Every step's batch cut into groups; `Collated.batch` lists those of this process.

    Args:
        batches: of a multiple of `size` rows.
        size: rows of a group.
        ranks: processes, each of which gets whole groups.
    """

    def __init__(self, batches: Batches, size: int, ranks: Ranks) -> None:
        self.batches, self.size, self.ranks = batches, size, ranks

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> Collated:
        rows, reader = self.batches.examples(step), self.batches.preprocessor
        reader.begin(self.batches.seed, step)
        groups = [rows[start : start + self.size] for start in range(0, len(rows), self.size)]
        own = range(len(groups))[self.ranks.share(len(groups))]
        collated = [
            self.batches.method.collate(
                examples, step, reader if place in own else _WithoutImages(reader)
            )
            for place, examples in enumerate(groups)
        ]
        counts: Counter[str] = Counter()
        for one in collated:
            counts.update(one.counts)
        batches = [collated[place].batch for place in own]
        return Collated(batches, {**counts, **self.batches.counts(step)})


class ModelPreprocessor(_Picklable):
    """Images and texts to tensors by a model's own preprocessing and tokenizer.

    Args:
        model: whose preprocessing and tokenizer are used.
        root: folder of the images; nothing outside it is read.
        rows: rows of precomputed features by image; where given, images are not read.
        limits: what is accepted as an image.
        crop_scale: shares of the area that random crops of single images keep; None reads them
            as evaluation does.
        counterfactual_images: folder of the counterfactuals' images, where any are shown.

    Attributes:
        ranks: processes that read a share each of a batch's images; this one reads its own.
    """

    def __init__(
        self,
        model: LoadedModel,
        root: Path,
        rows: Mapping[ImageInput, int] | None = None,
        limits: decoding.Limits | None = None,
        crop_scale: tuple[float, float] | None = None,
        counterfactual_images: Path | None = None,
    ) -> None:
        self.root, self.counterfactual_images, self.rows = root, counterfactual_images, rows
        self.limits = limits or decoding.Limits()
        self.size, self.context = model.image_size, model.context_length
        self.preprocess, self.tokenize = model.preprocess, model.tokenize
        self.mean = torch.tensor(model.mean).view(3, 1, 1) * 255
        self.std = torch.tensor(model.std).view(3, 1, 1) * 255
        # What the tokenizer fills short texts up with: 0, or another id of its own.
        self.padding = int(self.tokenize([""])[0, -1])
        self.crop_scale = crop_scale
        self.ranks = ALONE
        self._truncated = 0
        self._seed_and_step: tuple[int, int] = 0, 0
        self._make_caches()

    def _make_caches(self) -> None:
        half = self.size * self.size // 2 * 3
        self._cached_half: Callable[[str, composites.Axis], Image.Image] = lru_cache(
            CACHED_BYTES // half
        )(self._read_half)

    def _read_half(self, path: str, axis: composites.Axis) -> Image.Image:
        return composites.half(decoding.load(self.root, path, self.limits), axis, self.size)

    def begin(self, seed: int, step: int) -> None:
        """Set the step of a run that random crops are drawn for."""
        self._seed_and_step = seed, step

    def pixels(self, image: ImageInput) -> Tensor:
        """One image, [3, H, W], normalised.

        Composites are already of the input's size; they take the model's own mean and deviation
        (the authors' code takes ImageNet's: a slip).
        """
        if image.axis is None:
            return self.preprocess(self._single(image))
        first, second = (self._cached_half(path, image.axis) for path in image.paths)
        joined = composites.join(first, second, image.axis)
        raw = torch.frombuffer(bytearray(joined.tobytes()), dtype=torch.uint8)
        return (raw.view(self.size, self.size, 3).permute(2, 0, 1) - self.mean) / self.std

    def _single(self, shown: ImageInput) -> Image.Image:
        """An image, or a random crop of it at the input's size, which preprocessing leaves."""
        path = shown.paths[0]
        if shown.counterfactual:
            image = self._counterfactual(path)
        else:
            image = decoding.load(self.root, path, self.limits)
        if self.crop_scale is None:
            return image
        random_ = rng(*self._seed_and_step, "crop", path)
        return random_resized_crop(image, self.size, self.crop_scale, random_)

    def _counterfactual(self, path: str) -> Image.Image:
        """The image of a counterfactual."""
        if self.counterfactual_images is None:
            raise ValueError(f"'{path}' is a counterfactual's, and no folder of them was given")
        try:
            return decoding.load(self.counterfactual_images, path, self.limits)
        except decoding.ImageError as error:
            detail = (
                f"{error} (counterfactuals changed since the views were drawn? Run "
                "`kedro run --pipelines=counterfactuals,views`)"
            )
            raise decoding.ImageError(error.reason, detail) from error

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """Pixels [m, 3, H, W] of this process's share, or row numbers [m] of all features."""
        if self.rows is not None:
            return torch.tensor([self.rows[image] for image in images])
        own = images[self.ranks.share(len(images))]
        return torch.stack([self.pixels(image) for image in own])

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Token ids [K, T]; texts that do not fit are cut and counted."""
        tokens = self.tokenize(list(texts))
        full = tokens[:, -1] != self.padding
        if full.any():  # cut, or an exact fit
            long = [text for text, whole in zip(texts, full.tolist(), strict=True) if whole]
            longer = self.tokenize(long, context_length=self.context + 1)  # type: ignore[call-arg]
            self._truncated += int((longer[:, -1] != self.padding).sum())
        return tokens

    def spans(
        self, texts: Sequence[str], owners: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Which tokens spell a span of a text's characters.

        No tokenizer has to report where its tokens are in the text: the tokens of a beginning that
        ends with a word are the first ones of the whole text too.

        Args:
            texts: as `tokens` gets them.
            owners: K indices into `texts`.
            spans: K half-open spans of characters of those texts, which begin and end with words.

        Returns:
            [K, T], bool; none for a span that is cut off with its text, be it in part.
        """
        owned = list(zip(owners, spans, strict=True))
        rows = torch.tensor(owners, dtype=torch.long)
        # With a word behind it, a whole text is a beginning like the others.
        whole = self._longer_tokens([f"{text} x" for text in texts])
        uncut = F.pad(self.tokenize(list(texts)) == whole[:, : self.context], (0, BEYOND))[rows]
        firsts = self._agreeing([texts[owner][:start] for owner, (start, _) in owned], whole[rows])
        ends = self._agreeing([texts[owner][:end] for owner, (_, end) in owned], whole[rows])
        place = torch.arange(whole.shape[1])
        within = (place >= firsts[:, None]) & (place < ends[:, None])
        complete = (within <= uncut).all(dim=1, keepdim=True)
        return (within & complete)[:, : self.context]

    def _agreeing(self, beginnings: Sequence[str], tokens: Tensor) -> Tensor:
        """How many tokens [K] of each beginning are the first ones of tokens [K, T + BEYOND]."""
        distinct = {text: row for row, text in enumerate(dict.fromkeys(beginnings))}
        rows = torch.tensor([distinct[text] for text in beginnings], dtype=torch.long)
        found = self._longer_tokens(list(distinct))[rows]
        return (found == tokens).cumprod(dim=1).sum(dim=1)

    def _longer_tokens(self, texts: list[str]) -> Tensor:
        """Token ids [K, T + BEYOND]."""
        more = self.context + BEYOND
        if not texts:
            return torch.zeros(0, more, dtype=torch.long)
        return self.tokenize(texts, context_length=more)  # type: ignore[call-arg]

    def take_truncated(self) -> int:
        """How many texts were cut since the last call."""
        count, self._truncated = self._truncated, 0
        return count


class _WithoutImages:
    """Texts of a preprocessor, for the counts of groups that another process trains on."""

    def __init__(self, preprocessor: ModelPreprocessor) -> None:
        self.tokens, self.spans = preprocessor.tokens, preprocessor.spans

    def images(self, images: Sequence[ImageInput]) -> Tensor:
        """No images."""
        return torch.empty(0)
