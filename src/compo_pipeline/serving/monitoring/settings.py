"""Settings of monitoring."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, Field, PositiveInt

from compo_pipeline.core.settings import settings
from compo_pipeline.registry.settings import CHAMPION, Alias

ALPHA = 0.05
"""Probability of an alarm of a report where nothing has drifted."""


@settings
class MonitoringSettings:
    """Settings of monitoring: version, time window and distances."""

    alias: Alias = CHAMPION
    """Alias of the version of `registration.name` whose requests are compared with its reference
    sample."""
    version: PositiveInt | None = None
    """Number of the version. Null is the one with the alias."""
    since: AwareDatetime | None = None
    """Beginning of the window, such as 2026-03-01T00:00:00Z. Null is 24 hours before its end."""
    until: AwareDatetime | None = None
    """End of the window. Null is now."""
    rows: Annotated[int, Field(ge=10_000)] = 100_000
    """Most requests that are read with their embeddings. If there are more, all requests of
    randomly drawn images are read."""

    def __post_init__(self) -> None:
        """Refuse a window that ends before it begins."""
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"until: expected a time after since ({self.since}), got {self.until}")

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """Begin and end of the time window of requests.

        It ends at `now` at the latest.
        """
        until = min(self.until or now, now)
        since = self.since or until - timedelta(hours=24)
        return since.astimezone(UTC), until.astimezone(UTC)
