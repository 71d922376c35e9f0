"""Names, values and times of a study in few letters, for its page and its lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def labels(names: Iterable[str]) -> dict[str, str]:
    """The shortest ends of dotted names that tell them apart: `lr`, `weights.margin`."""
    parts = {name: name.split(".") for name in names}
    short: dict[str, str] = {}
    for name, own in parts.items():
        for count in range(1, len(own) + 1):
            ending = own[-count:]
            if sum(other[-count:] == ending for other in parts.values()) == 1:
                break
        short[name] = ".".join(ending)
    return short


def shown(value: Any) -> str:
    """A value as YAML has it, numbers with four digits."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float | None) -> str:
    """A time in seconds, minutes or hours; a dash where there is none."""
    if seconds is None:
        return "\N{EN DASH}"
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
