"""The decision about a version of a registered model, and its tags in the registry."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from compo_pipeline.registry.gate import Check

Outcome = Literal["promoted", "refused", "unchanged", "contested", "rolled back"]
ROLLED_BACK: Outcome = "rolled back"
# Of the tags of a version that tell what was decided about it last.
PREFIX = "promotion."
OUTCOME = f"{PREFIX}outcome"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a version of a registered model.

    Attributes:
        name: the registered model.
        version: the version that the decision is about.
        outcome: what came of it; of a dry run, what would have.
        reason: in a sentence.
        former: the champion before, None where there was none.
        opponent: what the version was held against.
        gate: the gate's identity, empty where none was asked.
        at: when, ISO 8601 in UTC.
        dry_run: whether the registry was left as it was.
        checks: what the gate found.
    """

    name: str
    version: int
    outcome: Outcome
    reason: str
    former: int | None
    opponent: str
    gate: str
    at: str
    dry_run: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the command ends with an error."""
        return self.outcome in ("refused", "contested")

    def summary(self) -> str:
        """One line."""
        dry = "dry run: " if self.dry_run else ""
        return f"{dry}{self.name} version {self.version}: {self.outcome}. {self.reason}"

    def tags(self) -> dict[str, str]:
        """What the version's tags say of it; a decision without a gate leaves an earlier one's."""
        tags = {
            OUTCOME: self.outcome,
            f"{PREFIX}reason": self.reason,
            f"{PREFIX}against": self.opponent,
            f"{PREFIX}at": self.at,
        }
        if self.gate:
            checks = [asdict(check) for check in self.checks]
            tags |= {f"{PREFIX}gate": self.gate, f"{PREFIX}checks": json.dumps(checks)}
        return tags
