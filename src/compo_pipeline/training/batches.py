"""Training batches: which rows a step gets, collated by the method.

A step's batch is the same whenever and in whichever process it is asked for.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from torch.utils.data import Dataset

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.contract import Collated, Example, ImageInput, Method
from compo_pipeline.methods.views import EpochViews, negative_kinds
from compo_pipeline.training.preprocessing import ModelPreprocessor, Picklable, name_of
from compo_pipeline.training.ranks import ALONE
from compo_pipeline.training.settings import TrainingSettings

log = logging.getLogger(__name__)


def deal(
    images: NDArray[np.int32], batch_size: int, seed: int, epoch: int
) -> tuple[NDArray[np.int32], int]:
    """Deal the rows of one epoch into full batches.

    The remaining rows are left out.

    A batch holds an image at most once where the data allow: a second row of an image moves to
    the next batch, and an image with as many rows as there are batches left comes into each.

    Args:
        images: number of each row's image [n].
        batch_size: rows a batch, at most the number of rows.
        seed: seed of the order, with the epoch.
        epoch: number of the epoch.

    Returns:
        Row numbers [batches, batch_size], and how many rows had to join a batch that held their
        image already.
    """
    order = array("i", range(len(images)))
    rng(seed, "order", epoch).shuffle(order)
    rest: Iterator[int] = iter(order)
    passed: deque[int] = deque()  # rows that a batch passed over come before the rest
    most = int(np.bincount(images).max(initial=0))
    batches = np.empty((len(images) // batch_size, batch_size), np.int32)
    repeated = 0
    for number, left in enumerate(range(len(batches), 0, -1)):
        if most >= left:
            waiting = np.fromiter(chain(passed, rest), np.int32)
            rest = iter(_frequent_first(waiting, images, left))
            passed.clear()
        batch: dict[int, int] = {}  # rows by image
        again: list[int] = []
        while len(batch) < batch_size:
            row = passed.popleft() if passed else next(rest, None)
            if row is None:
                break
            image = int(images[row])
            if image in batch:
                again.append(row)
            else:
                batch[image] = row
        short = batch_size - len(batch)
        batches[number] = [*batch.values(), *again[:short]]
        repeated += short
        passed.extendleft(reversed(again[short:]))
    return batches, repeated


def _frequent_first(
    rows: NDArray[np.int32], images: NDArray[np.int32], left: int
) -> NDArray[np.int32]:
    """Rows reordered: first those of images with at least as many rows as batches that remain."""
    frequent = np.bincount(images[rows])[images[rows]] >= left
    return np.concatenate([rows[frequent], rows[~frequent]])


class _DealtEpoch(NamedTuple):
    """The batches of an epoch as indices of views, and the caption index of each view.

    Batches are [batches, batch_size], with the number of rows that stand beside another row of
    their image; caption numbers are [n].
    """

    batches: NDArray[np.int32]
    repeated: int
    captions: NDArray[np.int64]


class Batches(Picklable, Dataset[list[Collated]]):
    """Dataset of the collated batch of every training step of a run.

    It is a list of the groups whose rows are contrasted with each other: of this process's groups,
    or of one, all rows.

    Args:
        captions: the training split.
        views: the views folder.
        method: collates.
        preprocessor: turns images and texts into tensors.
        recipe: rows per batch and number of steps. If there are fewer rows, batches shrink.
        seed: seed of the order.

    Attributes:
        ranks: processes, each of which gets whole groups.

    Raises:
        ValueError: the run would have no step, or views are of other captions.
        SettingsError: no row is of the curriculum's kinds.
    """

    def __init__(
        self,
        captions: Sequence[Caption],
        views: Path,
        method: Method,
        preprocessor: ModelPreprocessor,
        recipe: TrainingSettings,
        seed: int,
    ) -> None:
        self.captions = Table.of(captions, Caption)
        self._image_numbers = self.captions.codes("image_id")
        self._sources = self.captions.column("source").unique().to_pylist()
        self.views, self.method, self.seed = EpochViews(views), method, seed
        self.curriculum, self.group = recipe.curriculum, recipe.contrast_group
        self.preprocessor, self.ranks = preprocessor, ALONE
        rows, batch_size = len(self.views.epoch(0)), recipe.batch_size
        if rows < (self.group or 2):
            raise ValueError(
                f"a run of zero steps: {rows} rows with a view; contrast needs "
                f"{self.group or 'two'} rows (see quarantine for what was left out)"
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
            whole = rows - rows % (self.group or 1)
            log.warning("Batches shrink to %d: there are no more rows (not %d).", whole, batch_size)
            batch_size = whole
        self.batch_size = batch_size
        self.steps_per_epoch = rows // self.batch_size
        self.steps = recipe.epochs * self.steps_per_epoch
        if recipe.max_steps is not None:
            self.steps = min(self.steps, recipe.max_steps)

    @cached_property
    def _cached_epoch(self) -> Callable[[int], _DealtEpoch]:
        """Function from an epoch's number to its batches (`_deal_epoch`), with a cache of two."""
        return lru_cache(2)(self._deal_epoch)

    def __len__(self) -> int:
        return self.steps

    def _deal_epoch(self, epoch: int) -> _DealtEpoch:
        """Deal an epoch's rows into batches, in the curriculum's epochs only its own rows."""
        anchors = self.views.epoch(epoch).column("sample_id")
        captions = self.captions.places("sample_id", anchors)
        rows = np.arange(len(captions), dtype=np.int32)
        if self.curriculum.kinds and epoch < self.curriculum.epochs:
            rows = np.resize(self._first_rows(epoch), len(rows))
        images = self._image_numbers[captions[rows]]
        batches, repeated = deal(images, self.batch_size, self.seed, epoch)
        return _DealtEpoch(rows[batches], repeated, captions)

    def _first_rows(self, epoch: int) -> NDArray[np.int32]:
        """Indices of an epoch's views with a hard negative of the curriculum's kinds."""
        kinds = [
            negative_kinds(text)
            for text in self.views.epoch(epoch).column("provenance").to_pylist()
        ]
        found = np.flatnonzero([not own.isdisjoint(self.curriculum.kinds) for own in kinds])
        if not len(found):
            counts = Counter(kind for own in kinds for kind in own)
            named = ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common()) or "none"
            raise SettingsError(
                "training.curriculum.kinds: no row has a hard negative of the kinds "
                f"{list(self.curriculum.kinds)}; rows by kind: {named}"
            )
        return found.astype(np.int32)

    def examples(self, step: int) -> list[Example]:
        """The training examples of a step."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        dealt, views = self._cached_epoch(epoch), self.views.epoch(epoch)
        return [
            Example(self.captions[dealt.captions[row]], views[row]) for row in dealt.batches[batch]
        ]

    def __getitem__(self, step: int) -> list[Collated]:
        rows, reader = self.examples(step), self.preprocessor
        reader.set_step(self.seed, step)
        size = self.group or len(rows)
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        own = groups[self.ranks.share(len(groups))] if self.group else groups
        (batch, counts), *others = [self.method.collate(group, step, reader) for group in own]
        counts = {**counts, **reader.take_cut()}
        if self.ranks.first or not self.group:
            counts |= self.counts(step)
        return [Collated(batch, counts), *others]

    def counts(self, step: int) -> dict[str, int]:
        """Counts to log of a whole step: repeated images, and rows of each source."""
        counts = {}
        if step % self.steps_per_epoch == 0:
            repeated = self._cached_epoch(step // self.steps_per_epoch).repeated
            counts["rows beside another of their image"] = repeated
        if len(self._sources) > 1:
            epoch, batch = divmod(step, self.steps_per_epoch)
            dealt = self._cached_epoch(epoch)
            captions = self.captions.take(dealt.captions[dealt.batches[batch]])
            own = Counter(captions.column("source").to_pylist())
            counts |= {f"rows of {source}": own[source] for source in self._sources}
        return counts

    def images(self, further: Iterable[ImageInput] = ()) -> dict[str, ImageInput]:
        """All distinct images that the run shows, in order of first use, and then others."""
        shown = (
            image
            for step in range(self.steps)
            for example in self.examples(step)
            for image in self.method.images(example, step)
        )
        return {name_of(image): image for image in chain(shown, further)}
