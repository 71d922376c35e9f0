"""Figures of the table `counterfactuals`: its quarantine, its summary, and reasons of failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from click import ClickException

from compo_pipeline.records import Counterfactual, Rejected

EDITED, GENERATED, FAILED = "edited", "generated", "failed"
NO_TEXT, NO_IMAGE = "no_text", "no_image"
_REASONS = 5  # in an error
# What differs between failures of one reason: quoted texts and file names, and numbers.
_PARTICULAR = re.compile(r"""(?<![^\s(])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\d+(?:\.\d+)?""")


class TooManyFailures(ClickException, ValueError):
    """More edits failed than the settings tolerate."""


def quarantined(rows: Iterable[Counterfactual], images: Iterable[str]) -> list[Rejected]:
    """The failed rows, with the real image of each and the reason.

    Args:
        rows: of the table.
        images: path of each row's real image.
    """
    return [
        Rejected(
            row=number,
            sample_id=row.sample_id,
            image=image,
            rule=_rule(row),
            detail=f"{row.role} of sentence {row.sentence}: {row.detail}",
        )
        for number, (row, image) in enumerate(zip(rows, images, strict=True))
        if row.state == FAILED
    ]


def _rule(row: Counterfactual) -> str:
    return NO_IMAGE if row.text else NO_TEXT


def summary(rows: Sequence[Counterfactual]) -> dict[str, Any]:
    """Editor and generator, edits by role and state, and failures by rule."""
    failed = [row for row in rows if row.state == FAILED]
    states = Counter((row.role, row.state) for row in rows)
    return {
        "edits": len(rows),
        "caption_editor": rows[0].caption_editor if rows else "",
        "image_generator": rows[0].image_generator if rows else "",
        "fingerprint": rows[0].fingerprint if rows else "",
        "failed": len(failed),
        "failed_share": len(failed) / len(rows) if rows else 0.0,
        "roles": {
            role: {state: states[role, state] for state in (EDITED, GENERATED, FAILED)}
            for role in sorted({role for role, _ in states})
        },
        "rules": dict(Counter(map(_rule, failed))),
    }


class FailureReason(NamedTuple):
    """Why edits of a role failed, how often, and the reason of one of them in full."""

    role: str
    reason: str
    example: str
    times: int


def failure_reasons(rows: Iterable[Counterfactual]) -> list[FailureReason]:
    """Reasons of failures, the most frequent first, grouped without quoted texts and numbers."""
    examples: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.state == FAILED:
            reason = _PARTICULAR.sub("...", row.detail)
            examples.setdefault((row.role, reason), []).append(row.detail)
    found = [
        FailureReason(role, reason, details[0], len(details))
        for (role, reason), details in examples.items()
    ]
    return sorted(found, key=lambda reason: -reason.times)


def refuse_too_many(rows: Sequence[Counterfactual], tolerated: float, preview: Path) -> None:
    """Stop a run in which too many edits failed.

    Args:
        rows: of the table.
        tolerated: share of the edits of either role that may fail; all of them never may.
        preview: the folder of the preview page.

    Raises:
        TooManyFailures: more failed; with the most frequent reasons.
    """
    for role in sorted({row.role for row in rows}):
        ours = [row for row in rows if row.role == role]
        failed = sum(row.state == FAILED for row in ours)
        share = failed / len(ours)
        if failed < len(ours) and share <= tolerated:
            continue
        reasons = failure_reasons(ours)[:_REASONS]
        raise TooManyFailures(
            f"counterfactuals: {failed} of {len(ours)} {role} edits failed ({share:.1%}), "
            f"counterfactuals.tolerated_share allows {tolerated:.1%}:\n"
            + "\n".join(f"  {one.times} times, as: {one.example}" for one in reasons)
            + f"\nThe table counterfactuals_quarantine holds each with its reason, {preview} shows "
            "some; fix the settings of the caption editor or the image generator, try again with "
            "counterfactuals.retry, or raise counterfactuals.tolerated_share."
        )
