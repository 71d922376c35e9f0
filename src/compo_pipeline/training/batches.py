"""From views to batches: which rows a step sees, and the same whenever the step is asked for."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from torch.utils.data import Dataset

from compo_pipeline.methods.contract import Collated, Example, ImageInput, Method
from compo_pipeline.methods.view_tables import EpochViews
from compo_pipeline.records import Caption
from compo_pipeline.seeding import rng
from compo_pipeline.training.reading import TensorReader

log = logging.getLogger(__name__)


def plan(
    image_ids: Sequence[str], batch_size: int, seed: int, epoch: int
) -> tuple[list[list[int]], int]:
    """Deal one epoch's rows into full batches; what is left over waits for another epoch.

    A batch holds an image at most once where the data allow: a second row of an image moves to
    the next batch, and an image with as many rows as there are batches left comes into each.

    Args:
        image_ids: of each row.
        batch_size: rows a batch, at most the number of rows.
        seed: of the order, with the epoch.
        epoch: number of the epoch.

    Returns:
        Row numbers by batch, and how many rows had to join a batch that held their image already.
    """
    order = list(range(len(image_ids)))
    rng(seed, "order", epoch).shuffle(order)
    waiting = deque(order)
    most = max(Counter(image_ids).values(), default=0)
    batches, repeated = [], 0
    for left in range(len(order) // batch_size, 0, -1):
        if most >= left:
            waiting = _pressing_first(waiting, image_ids, left)
        batch: list[int] = []
        seen: set[str] = set()
        passed: list[int] = []
        while waiting and len(batch) < batch_size:
            row = waiting.popleft()
            if image_ids[row] in seen:
                passed.append(row)
            else:
                seen.add(image_ids[row])
                batch.append(row)
        short = batch_size - len(batch)
        batch += passed[:short]
        repeated += short
        waiting.extendleft(reversed(passed[short:]))
        batches.append(batch)
    return batches, repeated


def _pressing_first(waiting: deque[int], image_ids: Sequence[str], left: int) -> deque[int]:
    """Rows in their order, but first those whose image must come into every batch left."""
    rows = Counter(image_ids[row] for row in waiting)
    return deque(sorted(waiting, key=lambda row: rows[image_ids[row]] < left))


class Batches(Dataset[Collated]):
    """Batch of every step of a run.

    Args:
        captions: the training split.
        views: the views folder.
        method: collates.
        reader: reads images and texts.
        batch_size: rows a step; smaller, with a warning, where there are fewer rows.
        epochs: passes over the rows.
        seed: of the order.
        max_steps: ends the run early.

    Raises:
        ValueError: the run would have no step, or views are of other captions.
    """

    def __init__(
        self,
        captions: Sequence[Caption],
        views: Path,
        method: Method,
        reader: TensorReader,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        max_steps: int | None = None,
    ) -> None:
        self.captions = {caption.sample_id: caption for caption in captions}
        self.views, self.method, self.reader, self.seed = EpochViews(views), method, reader, seed
        rows = len(self.views.epoch(0))
        if rows < 2 or epochs < 1:
            raise ValueError(
                f"a run of zero steps: {rows} rows with a view, {epochs} epochs; "
                "contrast needs two rows (see quarantine for what was left out)"
            )
        shown = {sample_id for view in self.views.epoch(0) for sample_id in view.sample_ids}
        if unknown := shown - self.captions.keys():
            raise ValueError(
                f"{len(unknown)} samples of {views} are not among the captions ({min(unknown)}, "
                "...): the captions changed since; run "
                "`kedro run --pipelines=counterfactuals,views`"
            )
        if rows < batch_size:
            log.warning("Batches shrink to %d: there are no more rows (not %d).", rows, batch_size)
        self.batch_size = min(batch_size, rows)
        self.steps_per_epoch = rows // self.batch_size
        self.steps = epochs * self.steps_per_epoch
        if max_steps is not None:
            self.steps = min(self.steps, max_steps)
        self._plan = lru_cache(2)(self._deal)

    def __len__(self) -> int:
        return self.steps

    def __getstate__(self) -> dict[str, object]:
        """Caches stay behind: they do not travel to other processes."""
        state = {key: value for key, value in self.__dict__.items() if key != "_plan"}
        return {**state, "views": self.views.files[0].parent}

    def __setstate__(self, state: dict[str, object]) -> None:
        """With new caches."""
        self.__dict__.update(state)
        self.views = EpochViews(state["views"])  # type: ignore[arg-type]
        self._plan = lru_cache(2)(self._deal)

    def _deal(self, epoch: int) -> tuple[list[list[int]], int]:
        image_ids = [self.captions[view.sample_id].image_id for view in self.views.epoch(epoch)]
        return plan(image_ids, self.batch_size, self.seed, epoch)

    def examples(self, step: int) -> list[Example]:
        """The rows of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        views = self.views.epoch(epoch)
        chosen = [views[row] for row in self._plan(epoch)[0][index]]
        return [Example(self.captions[view.sample_id], view) for view in chosen]

    def __getitem__(self, step: int) -> Collated:
        self.reader.begin(self.seed, step)
        collated = self.method.collate(self.examples(step), step, self.reader)
        counts = {**collated.counts, "truncated texts": self.reader.take_truncated()}
        if step % self.steps_per_epoch == 0:
            repeated = self._plan(step // self.steps_per_epoch)[1]
            counts["rows beside another of their image"] = repeated
        return Collated(collated.batch, counts)

    def images(self) -> list[ImageInput]:
        """Every image that the run shows, once, in order of first use."""
        shown: Counter[ImageInput] = Counter()
        for step in range(self.steps):
            for example in self.examples(step):
                shown.update(self.method.needed(example, step))
        return list(shown)
