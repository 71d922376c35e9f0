"""Prompts and keys of stored answers; the examples of the prompts pass the checks."""

from collections.abc import Callable

import pytest

from compo_pipeline.core.records import Parse
from compo_pipeline.generation.counterfactuals.contract import EditRequest, Role
from compo_pipeline.generation.counterfactuals.editors import llm
from compo_pipeline.generation.counterfactuals.editors.checks import clean_answer, reason_to_reject


@pytest.mark.parametrize("role", ["negative", "positive"])
def test_examples_pass_the_checks(role: Role, parsed: Callable[[str], Parse]) -> None:
    turns = [turn["content"] for turn in llm.edit_messages("", role)[1:-1]]
    for caption, text in zip(turns[::2], turns[1::2], strict=True):
        request = EditRequest("id", 0, role, caption, parsed(caption))
        assert clean_answer(text, caption) == text
        assert reason_to_reject(request, text) == "", text
