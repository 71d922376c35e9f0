"""Views written as tables: one parquet file an epoch, rows in the captions' order."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq

from compo_pipeline.methods.contract import Drawing, Method
from compo_pipeline.records import Caption, Counterfactual, View, from_table, to_table

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ViewSettings:
    """How many views are drawn, and from what.

    Attributes:
        epochs: tables that are written; every epoch draws partners, sentences and swaps afresh.
        split: the split that trains.
    """

    epochs: int = 1
    split: str = "train"

    def __post_init__(self) -> None:
        """A method needs at least one table."""
        if self.epochs < 1:
            raise ValueError(f"epochs: expected at least 1, got {self.epochs}")


def by_sample(counterfactuals: Iterable[Counterfactual]) -> dict[str, list[Counterfactual]]:
    """Edited captions by sample_id."""
    found: dict[str, list[Counterfactual]] = {}
    for one in counterfactuals:
        found.setdefault(one.sample_id, []).append(one)
    return found


def write(
    method: Method,
    captions: Sequence[Caption],
    drawing: Drawing,
    epochs: int,
    folder: Path,
) -> None:
    """Write the views of all epochs; the folder is replaced as a whole.

    Args:
        method: draws the views.
        captions: the rows that train.
        drawing: what views are drawn from; of the first epoch.
        epochs: their number.
        folder: `epoch=NN.parquet` go here.

    Raises:
        ValueError: no caption has a view.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for epoch in range(epochs):
        views = list(method.views(captions, drawing._replace(epoch=epoch)))
        if not views:
            raise ValueError(
                f"none of {len(captions)} captions has a view under the method '{method.name}': "
                "composites need two images of one orientation"
            )
        if epoch == 0:
            _tell(method, captions, views)
        pq.write_table(to_table(views, View), partial / f"epoch={epoch:02d}.parquet")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _tell(method: Method, captions: Sequence[Caption], views: Sequence[View]) -> None:
    lost = sum(negative is None for view in views for negative in view.negatives)
    log.info(
        "%s: %d views of %d captions an epoch, %d negatives could not be made.",
        *(method.name, len(views), len(captions), lost),
    )
    short = sum(len(caption.sentences) < method.sentences for caption in captions)
    if short:
        log.warning(
            "%s: %d of %d captions have fewer than %d sentences: further positives repeat the "
            "first.",
            *(method.name, short, len(captions), method.sentences),
        )
    if any(view.counterfactuals for view in views):
        _tell_images(method.name, views)
    if len(views) < len(captions) and views[0].kind == "composite":
        log.warning(
            "%d captions have no view: no other image has their orientation.",
            len(captions) - len(views),
        )


def _tell_images(method: str, views: Sequence[View]) -> None:
    negatives, positives = (
        sum(map(bool, paths))
        for paths in zip(*(view.counterfactuals for view in views), strict=True)
    )
    retold = sum(len(view.positives) > 1 for view in views)
    log.info(
        "%d views have a retold caption, %d an image of it, %d an image of the negative.",
        *(retold, positives, negatives),
    )
    if not negatives and not positives:
        log.warning(
            "No view has a synthetic image: %s trains on edited captions alone. Set "
            "counterfactuals.image_generator, or %s.objective.images=false where that is meant.",
            *(method, method),
        )


def _number(file: Path) -> int:
    """Of an epoch=NN.parquet."""
    return int(file.stem.removeprefix("epoch="))


class EpochViews:
    """The views folder: one table an epoch, read when its turn comes.

    Raises:
        FileNotFoundError: there is no table in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("epoch=*.parquet"), key=_number)
        if not self.files:
            raise FileNotFoundError(
                f"no epoch=NN.parquet in {folder} (catalog entry `views`): "
                "run `kedro run --pipelines=counterfactuals,views`"
            )
        self.read = lru_cache(2)(self._read)

    def _read(self, number: int) -> list[View]:
        return list(from_table(pq.read_table(self.files[number]), View))

    def epoch(self, epoch: int) -> list[View]:
        """The views of an epoch; after the last table the first comes round again."""
        return self.read(epoch % len(self.files))
