"""Several sources in one training: which rows of each are the anchors of an epoch's views.

A source is passed through again and again, each time in a new order, and an epoch takes the next
rows of each source: as many as its weight says. So no row comes again before all others of its
source have come, and a row that an epoch has twice has two views: those of two passes.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.methods.contract import Method
from compo_pipeline.run.seeding import rng
from compo_pipeline.storage.records import Caption
from compo_pipeline.storage.tables import Table


def apportioned(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers that sum to `total` in proportion to weights, by the largest remainders.

    Each is its exact share, rounded up or down; of equal remainders the first names are rounded up.

    Args:
        total: of the numbers.
        weights: above zero, by name.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    quotas = {name: total * weight / sum(exact.values()) for name, weight in exact.items()}
    found = {name: int(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: found[name] - quotas[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


class SourceRows(NamedTuple):
    """A source's training rows, those of them that have a view, and how many an epoch has."""

    captions: Table[Caption]
    anchors: Table[Caption]
    share: int


class Anchors(NamedTuple):
    """Rows of one source in one epoch, [n] each: numbers among those that have a view, and the pass
    in which each is drawn.
    """

    rows: NDArray[np.int64]
    passes: NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """Weights of sources, and what an epoch takes of each."""

    weights: Mapping[str, float]
    """By source."""

    epoch_rows: int | None
    """Rows of an epoch; None: as many as the largest source has."""

    seed: int
    """Of the order of each pass."""

    @classmethod
    def of(cls, weights: Mapping[str, float], epoch_rows: int | None, seed: int) -> Mixture | None:
        """Of sources with these weights; None where there are none."""
        return cls(weights, epoch_rows, seed) if weights else None

    def sources(self, captions: Table[Caption], method: Method) -> dict[str, SourceRows]:
        """The rows of each source, and its share of an epoch.

        Args:
            captions: all rows that train.
            method: says which of them have a view.

        Raises:
            SettingsError: a source has no row that trains, or none in an epoch.
        """
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
        shares = apportioned(total, self.weights)
        if empty := next((name for name, share in shares.items() if not share), None):
            raise SettingsError(
                f"data.sources.{empty}.weight: {self.weights[empty]:g} is less than a row of an "
                f"epoch of {total}; expected a higher weight, or more rows at data.epoch_rows"
            )
        return {name: SourceRows(own, anchors[name], shares[name]) for name, own in found.items()}

    def anchors(self, source: str, rows: int, share: int, epoch: int) -> Anchors:
        """The rows of a source in an epoch, pass by pass and ascending.

        Args:
            source: its name.
            rows: its rows that have a view.
            share: its rows in every epoch.
            epoch: number of the epoch.
        """
        first, last = epoch * share, (epoch + 1) * share
        parts = [
            (number, self._part(source, rows, number, range(first, last)))
            for number in range(first // rows, -(-last // rows))
        ]
        passes = [np.full(len(part), number) for number, part in parts]
        empty = np.empty(0, np.int64)
        return Anchors(
            np.concatenate([empty, *(part for _, part in parts)]), np.concatenate([empty, *passes])
        )

    def _part(self, source: str, rows: int, number: int, taken: range) -> NDArray[np.int64]:
        """The rows of a pass that are taken, ascending, by places in all passes of the source."""
        start, stop = max(taken.start - number * rows, 0), min(taken.stop - number * rows, rows)
        if stop - start == rows:
            return np.arange(rows)
        order = array("q", range(rows))
        rng(self.seed, "pass", source, number).shuffle(order)
        return np.sort(np.frombuffer(order, np.int64)[start:stop])
