"""Several sources in one training: which rows of each are the anchors of an epoch's views.

A source is passed through again and again, each time in a new order, and an epoch takes the next
rows of each source: as many as its weight says. So no row comes again before all others of its
source have come, and a row that an epoch has twice has two views: those of two passes.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.core.records import Caption
from compo_pipeline.core.seeding import rng
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import Table
from compo_pipeline.methods.contract import Method


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Integers that sum to `total` in proportion to weights, by the largest remainders.

    Each is its exact share, rounded up or down; of equal remainders the first names are rounded up.

    Args:
        total: sum of the numbers.
        weights: weights above zero, by name.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    quotas = {name: total * weight / sum(exact.values()) for name, weight in exact.items()}
    found = {name: int(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: found[name] - quotas[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


class SourceRows(NamedTuple):
    """A source's training rows, its rows that have a view, and its number of rows per epoch."""

    captions: Table[Caption]
    anchors: Table[Caption]
    share: int

    @property
    def counts(self) -> tuple[int, int]:
        """Number of its rows that have a view, and of those in every epoch."""
        return len(self.anchors), self.share


class Anchors(NamedTuple):
    """Indices [n] of the rows that an epoch takes of one source, and the pass [n] of each.

    Indices count the rows that have a view; a view is drawn as in its pass.
    """

    rows: NDArray[np.int64]
    passes: NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """Sampling weights of several data sources, and the rows that an epoch takes of each."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by source. Without any, an epoch takes every row once, from any source."""

    epoch_rows: int | None = None
    """Rows of an epoch; None: as many as the largest source has."""

    seed: int = 0
    """Seed of the order of each pass."""

    def sources(self, captions: Table[Caption], method: Method) -> dict[str, SourceRows]:
        """Training rows of each source, and its number of rows per epoch, by source name.

        Args:
            captions: all rows that train.
            method: says which of them have a view.

        Raises:
            SettingsError: a source has no row that trains, or none in an epoch.
        """
        if not self.weights:
            return {"": SourceRows(captions, captions, len(captions))}
        found = {name: captions.having("source", [name]) for name in self.weights}
        if empty := next((name for name, own in found.items() if not own), None):
            others = ", ".join(captions.column("source").unique().to_pylist())
            raise SettingsError(
                f"data.sources.{empty}: none of its rows trains (views.split), only rows of "
                f"{others} do; see its splits and the quarantine table, and run ingest and "
                "validation again after a change of data.sources"
            )
        anchors = {name: own.where(method.anchors(own)) for name, own in found.items()}
        if empty := next((name for name, own in anchors.items() if not own), None):
            raise SettingsError(
                f"data.sources.{empty}: none of its {len(found[empty])} rows has a view under the "
                f"method '{method.name}': composites need two images of one orientation"
            )
        total = self.epoch_rows or max(map(len, anchors.values()))
        shares = apportion(total, self.weights)
        if empty := next((name for name, share in shares.items() if not share), None):
            raise SettingsError(
                f"data.sources.{empty}.weight: {self.weights[empty]:g} is less than a row of an "
                f"epoch of {total}; expected a higher weight, or more rows at data.epoch_rows"
            )
        return {name: SourceRows(own, anchors[name], shares[name]) for name, own in found.items()}

    def anchors(self, source: str, rows: int, share: int, epoch: int) -> Anchors:
        """Rows that an epoch takes of a source: pass after pass, ascending within each pass.

        Args:
            source: name of the source.
            rows: rows of the source that have a view.
            share: number of rows of the source in every epoch.
            epoch: number of the epoch.
        """
        first, last = epoch * share, (epoch + 1) * share
        parts = [
            (number, self._rows_of_pass(source, rows, number, range(first, last)))
            for number in range(first // max(rows, 1), -(-last // max(rows, 1)))
        ]
        passes = [np.full(len(part), number) for number, part in parts]
        empty = np.empty(0, np.int64)
        return Anchors(
            np.concatenate([empty, *(part for _, part in parts)]), np.concatenate([empty, *passes])
        )

    def _rows_of_pass(self, source: str, rows: int, number: int, taken: range) -> NDArray[np.int64]:
        """Ascending row indices that an epoch takes from one pass through a source.

        `taken` counts the rows of all passes of the source.
        """
        start, stop = max(taken.start - number * rows, 0), min(taken.stop - number * rows, rows)
        if stop - start == rows:
            return np.arange(rows)
        order = array("q", range(rows))
        rng(self.seed, "pass", source, number).shuffle(order)
        return np.sort(np.frombuffer(order, np.int64)[start:stop])


ALL_ROWS = Mixture()
"""Every row once in an epoch."""
