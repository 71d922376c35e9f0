"""A seeded random sample of one split's records, exact in number and even in chance."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from compo_pipeline.datasets.readers.record import RawCaption
from compo_pipeline.datasets.settings import SampleSettings
from compo_pipeline.records import Rejected
from compo_pipeline.seeding import digest


class Sample:
    """Draws while the records pass by; what is not drawn is counted and let go."""

    def __init__(self, settings: SampleSettings) -> None:
        """Start with nothing seen."""
        self._settings = settings
        self._seen = self._drawn = 0

    def of(self, records: Iterable[RawCaption | Rejected]) -> Iterator[RawCaption | Rejected]:
        """The sample and everything that it does not concern, in the records' order.

        A record's id alone decides its rank, so that neither the order of the files nor records
        that are added to them change which of two others is preferred. What could not be read
        is no candidate.
        """
        rows = self._settings.rows
        if rows is None:
            yield from records
            return
        passed: list[tuple[int, RawCaption | Rejected]] = []
        # The highest rank is at the top, as its negative: the first to give way.
        drawn: list[tuple[int, int, RawCaption]] = []
        for place, record in enumerate(records):
            if isinstance(record, Rejected) or record.split != self._settings.split:
                passed.append((place, record))
                continue
            self._seen += 1
            candidate = (-digest(self._settings.seed, record.sample_id), -place, record)
            if len(drawn) < rows:
                heapq.heappush(drawn, candidate)
            elif candidate > drawn[0]:
                heapq.heapreplace(drawn, candidate)
        self._drawn = len(drawn)
        passed += [(-place, record) for _, place, record in drawn]
        yield from (record for _, record in sorted(passed, key=lambda entry: entry[0]))

    def report(self) -> dict[str, int | str] | None:
        """What was drawn from what; None where all is taken."""
        if self._settings.rows is None:
            return None
        return {
            "split": self._settings.split,
            "seed": self._settings.seed,
            "records": self._seen,
            "taken": self._drawn,
        }
