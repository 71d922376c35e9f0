"""What writers that ask a language model share: which answer counts, and what is asked next."""

from __future__ import annotations

from compo_pipeline import seeding
from compo_pipeline.counterfactuals.contract import EditedCaption, EditFailure, EditRequest
from compo_pipeline.counterfactuals.editors.cache import Answer
from compo_pipeline.counterfactuals.editors.checks import CheckSettings, cleaned, refusal

_SEEDS = 2**31  # what servers take for a seed


def seed_of(seed: int, request: EditRequest, attempt: int) -> int:
    """The seed of one attempt: of the caption and the role alone, so that equal captions share an
    answer.
    """
    return seeding.digest(seed, request.caption, request.role, attempt) % _SEEDS


def judged(
    request: EditRequest, answer: Answer, attempt: int, settings: CheckSettings
) -> EditedCaption | EditFailure:
    """An answer after the checks; attempts are counted from 0."""
    text = cleaned(answer.text, request.caption)
    refused = "cut off by max_tokens" if answer.cut else refusal(request, text, settings)
    if refused:
        asked = "asked once" if attempt == 0 else f"asked {attempt + 1} times"
        return EditFailure(
            request, f"{asked}; the last answer was refused: {refused} ({text[:200]!r})"
        )
    return EditedCaption(request, text, f"attempt {attempt + 1}")
