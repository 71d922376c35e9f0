"""Rows of `counterfactuals`, their quarantine, and whether too many of them failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click import ClickException

from compo_pipeline.counterfactuals.generation import Drawn, Edit
from compo_pipeline.counterfactuals.journal import Outcome
from compo_pipeline.records import Counterfactual, Rejected

WRITTEN, MADE, FAILED = "written", "made", "failed"
NO_TEXT, NO_IMAGE = "no_text", "no_image"
_TOLD = 5  # reasons in an error
# What differs between failures of one reason: quoted texts and file names, and numbers.
_PARTICULAR = re.compile(r"""(?<![^\s(])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\d+(?:\.\d+)?""")


class TooManyFailures(ClickException, ValueError):
    """More edits failed than the settings tolerate."""


def row(
    edit: Edit, text: Outcome, drawn: Drawn | None, image: str, by: tuple[str, str, str]
) -> Counterfactual:
    """One row of the table.

    Args:
        edit: what was wanted.
        text: what the writer answered.
        drawn: what the maker answered; None where it was not asked.
        image: path of the image below the images' folder, empty where there is none.
        by: names of writer and maker, and the hash of their settings.
    """
    state, detail = WRITTEN, text.detail
    if not text.text:
        state = FAILED
    elif drawn is not None:
        state = MADE if drawn.file else FAILED
        detail = detail if drawn.file else drawn.reason
    writer, maker, settings = by
    return Counterfactual(
        sample_id=edit.row.sample_id,
        sentence=edit.sentence,
        caption=edit.caption,
        role=edit.role,
        text=text.text,
        image=image,
        writer=writer,
        maker=maker,
        settings=settings,
        state=state,
        detail=detail,
    )


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
            rule=rule(row),
            detail=f"{row.role} of sentence {row.sentence}: {row.detail}",
        )
        for number, (row, image) in enumerate(zip(rows, images, strict=True))
        if row.state == FAILED
    ]


def rule(row: Counterfactual) -> str:
    """What a failed row lacks."""
    return NO_IMAGE if row.text else NO_TEXT


def summary(rows: Sequence[Counterfactual]) -> dict[str, Any]:
    """Who made the edits, how many there are by role and state, how many failed by which rule."""
    failed = [row for row in rows if row.state == FAILED]
    states = Counter((row.role, row.state) for row in rows)
    return {
        "edits": len(rows),
        "writer": rows[0].writer if rows else "",
        "maker": rows[0].maker if rows else "",
        "settings": rows[0].settings if rows else "",
        "failed": len(failed),
        "failed_share": len(failed) / len(rows) if rows else 0.0,
        "roles": {
            role: {state: states[role, state] for state in (WRITTEN, MADE, FAILED)}
            for role in sorted({role for role, _ in states})
        },
        "rules": dict(Counter(map(rule, failed))),
    }


@dataclass(frozen=True, slots=True)
class Reason:
    """Why edits of a role failed, how often, and the words of one of them."""

    role: str
    told: str
    example: str
    times: int


def reasons(rows: Iterable[Counterfactual]) -> list[Reason]:
    """Reasons of failures, the most frequent first; quoted texts and numbers do not tell apart."""
    examples: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.state == FAILED:
            told = _PARTICULAR.sub("...", row.detail)
            examples.setdefault((row.role, told), []).append(row.detail)
    found = [
        Reason(role, told, details[0], len(details)) for (role, told), details in examples.items()
    ]
    return sorted(found, key=lambda reason: -reason.times)


def refuse_too_many(rows: Sequence[Counterfactual], tolerated: float, preview: Path) -> None:
    """Stop a run whose writer or maker fails where it was meant not to.

    Args:
        rows: of the table.
        tolerated: share of the edits of either role that may fail; all of them never may.
        preview: where to look.

    Raises:
        TooManyFailures: more failed; with the most frequent reasons.
    """
    for role in sorted({row.role for row in rows}):
        ours = [row for row in rows if row.role == role]
        failed = sum(row.state == FAILED for row in ours)
        share = failed / len(ours)
        if failed < len(ours) and share <= tolerated:
            continue
        lines = [f"  {one.times} times, as: {one.example}" for one in reasons(ours)[:_TOLD]]
        raise TooManyFailures(
            f"counterfactuals: {failed} of {len(ours)} {role} edits failed ({share:.1%}), "
            f"counterfactuals.tolerated_share allows {tolerated:.1%}:\n"
            + "\n".join(lines)
            + f"\nThe table counterfactuals_quarantine holds each with its reason, {preview} shows "
            "some; mend the writer's or the maker's settings, ask again with "
            "counterfactuals.retry, or raise counterfactuals.tolerated_share."
        )
