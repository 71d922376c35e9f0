"""Summarise the table `counterfactuals`: counts, quarantined rows and reasons of failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compo_pipeline.core.records import Counterfactual, Rejected
from compo_pipeline.core.settings import PlainError

EDITED, GENERATED, FAILED = "edited", "generated", "failed"
NO_TEXT, NO_IMAGE = "no_text", "no_image"
_REASONS = 5  # in an error
# What differs between failures of one reason: quoted texts and file names, and numbers.
_PARTICULAR = re.compile(r"""(?<![^\s(])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\d+(?:\.\d+)?""")


class TooManyFailures(PlainError, ValueError):
    """Error: a larger share of the edits failed than `tolerated_share` allows."""


def quarantine_rows(rows: Iterable[Counterfactual], images: Iterable[str]) -> Iterator[Rejected]:
    """Rows of the quarantine table, from the failed rows, with real image and reason.

    Args:
        rows: rows of the table.
        images: path of each row's real image.
    """
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        if row.state == FAILED:
            yield Rejected(
                row=number,
                sample_id=row.sample_id,
                image=image,
                rule=_quarantine_rule(row),
                detail=f"{row.role} of sentence {row.sentence}: {row.detail}",
            )


def _quarantine_rule(row: Counterfactual) -> str:
    """Quarantine rule that a failed row broke: `no_image`, or `no_text`."""
    return NO_IMAGE if row.text else NO_TEXT


def summary(rows: Sequence[Counterfactual]) -> dict[str, Any]:
    """JSON summary of the table: edits by role and state, failures by rule, editor, generator."""
    counts = Counter((row.role, row.state, _quarantine_rule(row)) for row in rows)
    states, rules = Counter[tuple[str, str]](), Counter[str]()
    for (role, state, rule), times in counts.items():
        states[role, state] += times
        if state == FAILED:
            rules[rule] += times
    return {
        "edits": len(rows),
        "caption_editor": rows[0].caption_editor if rows else "",
        "image_generator": rows[0].image_generator if rows else "",
        "fingerprint": rows[0].fingerprint if rows else "",
        "failed": rules.total(),
        "failed_share": rules.total() / len(rows) if rows else 0.0,
        "roles": {
            role: {state: states[role, state] for state in (EDITED, GENERATED, FAILED)}
            for role in sorted({role for role, _ in states})
        },
        "rules": dict(rules),
    }


class FailureReason(NamedTuple):
    """A reason of failed edits in a role: common text, an example in full, and the count."""

    role: str
    reason: str
    example: str
    times: int


def failure_reasons(rows: Iterable[Counterfactual]) -> list[FailureReason]:
    """Counted reasons of failed edits, most frequent first.

    Quotes and numbers are ignored.
    """
    times, examples = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for row in rows:
        if row.state == FAILED:
            reason = row.role, _PARTICULAR.sub("...", row.detail)
            times[reason] += 1
            examples.setdefault(reason, row.detail)
    found = [FailureReason(*reason, examples[reason], count) for reason, count in times.items()]
    return sorted(found, key=lambda reason: -reason.times)


def refuse_too_many(rows: Sequence[Counterfactual], tolerated: float, preview: Path) -> None:
    """Raise an error if too large a share of the edits failed.

    Args:
        rows: rows of the table.
        tolerated: largest share of failed edits in either role. It is an error if all edits fail.
        preview: the folder of the preview page.

    Raises:
        TooManyFailures: more failed; with the most frequent reasons.
    """
    edits = Counter(row.role for row in rows)
    failures = Counter(row.role for row in rows if row.state == FAILED)
    for role, count in sorted(edits.items()):
        failed = failures[role]
        share = failed / count
        if failed < count and share <= tolerated:
            continue
        reasons = [one for one in failure_reasons(rows) if one.role == role][:_REASONS]
        allowed = f"counterfactuals.tolerated_share allows {tolerated:.1%}"
        if share <= tolerated:
            allowed = "expected one at least that did not"
        raise TooManyFailures(
            f"counterfactuals: {failed} of {count} {role} edits failed ({share:.1%}), {allowed}:\n"
            + "\n".join(f"  {one.times} times, as: {one.example}" for one in reasons)
            + f"\nThe table counterfactuals_quarantine holds each with its reason, {preview} shows "
            "some; fix the settings of the caption editor or the image generator, and run again"
            + ("." if share <= tolerated else ", or raise counterfactuals.tolerated_share.")
        )
