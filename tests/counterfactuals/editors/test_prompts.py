"""Our prompts: their form, and that their own examples would pass the checks."""

from collections.abc import Callable

import pytest

from compo_pipeline.counterfactuals.contract import EditRequest, Role
from compo_pipeline.counterfactuals.editors import prompts
from compo_pipeline.counterfactuals.editors.checks import CheckSettings, cleaned, refusal
from compo_pipeline.records import Parse


@pytest.mark.parametrize("role", ["negative", "positive"])
def test_messages(role: Role) -> None:
    chat = prompts.messages("A dog\n on a mat.", role)
    assert [turn["role"] for turn in chat[:3]] == ["system", "user", "assistant"]
    assert chat[-1] == {"role": "user", "content": "A dog on a mat."}
    assert chat[1:-1] != prompts.messages("", "positive" if role == "negative" else "negative")
    text = prompts.plain(chat)
    assert text.endswith("Caption: A dog on a mat.\nEdited:")
    assert text.count("\nEdited:") == len(chat[1:]) // 2 + 1


@pytest.mark.parametrize("role", ["negative", "positive"])
def test_examples_pass_the_checks(role: Role, parsed: Callable[[str], Parse]) -> None:
    turns = [turn["content"] for turn in prompts.messages("", role)[1:-1]]
    for caption, text in zip(turns[::2], turns[1::2], strict=True):
        request = EditRequest("id", 0, role, caption, parsed(caption))
        assert cleaned(text, caption) == text
        assert refusal(request, text, CheckSettings()) == "", text


def test_a_changed_prompt_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = prompts.fingerprint()
    monkeypatch.setattr(prompts, "_SYSTEM", "Edit captions.")
    assert prompts.fingerprint() != before
