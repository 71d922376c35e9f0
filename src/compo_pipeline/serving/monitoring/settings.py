"""Settings of monitoring."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, Field, PositiveFloat, PositiveInt

from compo_pipeline.core.settings import settings
from compo_pipeline.registry.settings import CHAMPION, Alias

ALPHA = 0.05
"""Probability of an alarm of a report where nothing has drifted."""


@settings
class MonitoringSettings:
    """Settings of monitoring (YAML key `monitoring`)."""

    alias: Alias = CHAMPION
    """Alias of the version of `registration.name` whose requests are compared with its reference
    sample."""
    version: PositiveInt | None = None
    """Number of that version; null: the one with the alias."""
    since: AwareDatetime | None = None
    """When the window begins, such as 2026-03-01T00:00:00Z; null: `window_hours` before its end."""
    until: AwareDatetime | None = None
    """When the window ends; null: now."""
    window_hours: PositiveFloat = 24
    """Hours of the window where `since` is null."""
    rows: Annotated[int, Field(ge=10_000)] = 100_000
    """The most requests that are read with their embeddings; of more, all those of images drawn at
    random."""
    neighbours: PositiveInt = 10
    """A request is as far from the reference as the neighbour of this number."""

    def __post_init__(self) -> None:
        """Refuse a window that ends before it begins."""
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"until: expected a time after since ({self.since}), got {self.until}")

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """Begin and end of the time window of requests; it ends at `now` at the latest."""
        until = min(self.until or now, now)
        since = self.since or until - timedelta(hours=self.window_hours)
        return since.astimezone(UTC), until.astimezone(UTC)
