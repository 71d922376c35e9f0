"""Rows of `counterfactuals`, their quarantine, and whether too many of them failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.pipelines.counterfactuals.generation import Drawn, Edit
from compo_pipeline.pipelines.counterfactuals.journal import Outcome
from compo_pipeline.records import Counterfactual, Rejected

WRITTEN, MADE, FAILED = "written", "made", "failed"
NO_TEXT, NO_PICTURE = "no_text", "no_picture"
_TOLD = 5  # reasons in an error


class TooManyFailures(ValueError):
    """More edits failed than the settings tolerate."""


def row(
    edit: Edit, text: Outcome, drawn: Drawn | None, image: str, by: tuple[str, str, str]
) -> Counterfactual:
    """One row of the table.

    Args:
        edit: what was wanted.
        text: what the writer answered.
        drawn: what the maker answered; None where it was not asked.
        image: path of the picture below the pictures' folder, empty where there is none.
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
    """The failed rows, with the real picture of each and the reason.

    Args:
        rows: of the table.
        images: path of each row's real picture.
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
    return NO_PICTURE if row.text else NO_TEXT


def summary(rows: Sequence[Counterfactual]) -> dict[str, Any]:
    """How many edits there are by role and state, and how many failed by which rule."""
    failed = [row for row in rows if row.state == FAILED]
    states = Counter((row.role, row.state) for row in rows)
    return {
        "edits": len(rows),
        "failed": len(failed),
        "failed_share": len(failed) / len(rows) if rows else 0.0,
        "roles": {
            role: {state: states[role, state] for state in (WRITTEN, MADE, FAILED)}
            for role in sorted({role for role, _ in states})
        },
        "rules": dict(Counter(map(rule, failed))),
    }


def refuse_too_many(
    rows: Sequence[Counterfactual], counts: Mapping[str, Any], tolerated: float, preview: Path
) -> None:
    """Stop a run whose writer or maker fails where it was meant not to.

    Raises:
        TooManyFailures: more than the tolerated share, or all; with the most frequent reasons.
    """
    if counts["failed"] < counts["edits"] and counts["failed_share"] <= tolerated:
        return
    reasons = Counter((rule(row), row.detail) for row in rows if row.state == FAILED)
    lines = [f"  {name}, {n} times: {reason}" for (name, reason), n in reasons.most_common(_TOLD)]
    raise TooManyFailures(
        f"counterfactuals: {counts['failed']} of {counts['edits']} edits failed "
        f"({counts['failed_share']:.1%}), counterfactuals.tolerated_share allows {tolerated:.1%}:\n"
        + "\n".join(lines)
        + f"\nThe table counterfactuals_quarantine holds each with its reason, {preview} shows "
        "some; mend the writer's or the maker's settings, ask again with counterfactuals.retry, "
        "or raise counterfactuals.tolerated_share."
    )
