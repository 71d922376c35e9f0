"""What a writer of counterfactual captions is asked, what it answers, and what a writer is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, Protocol

from compo_pipeline.records import Parse

# A negative says something else than its caption, a positive the same in other words.
Role = Literal["negative", "positive"]


@dataclass(frozen=True, slots=True)
class Request:
    """A caption to edit, and to what end. `sentence` is its index among the sample's."""

    sample_id: str
    sentence: int
    role: Role
    caption: str
    parse: Parse


@dataclass(frozen=True, slots=True)
class Written:
    """An edited caption that passed all checks; `detail` says how it came about."""

    request: Request
    text: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that got no text, and why.

    `lasting` says whether asking again would give the same; it would not where nobody answered.
    """

    request: Request
    reason: str
    lasting: bool = True


class Writer(Protocol):
    """Writes one minimal edit of each caption."""

    @property
    def name(self) -> str:
        """The name that the configuration knows it by."""
        ...

    @property
    def settings_hash(self) -> str:
        """A short hash of all that decides the texts: equal hashes, equal texts."""
        ...

    def write(self, requests: Sequence[Request]) -> Iterator[Written | Failed]:
        """One answer for each request, in the requests' order."""
        ...


def short_hash(*parts: Any) -> str:
    """Twelve hexadecimal digits of settings and other plain values."""
    plain = [asdict(part) if _is_settings(part) else part for part in parts]
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_settings(part: Any) -> bool:
    return is_dataclass(part) and not isinstance(part, type)
