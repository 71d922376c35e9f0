"""What is mended in an answer, and what is refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compo_pipeline.core.records import Parse
from compo_pipeline.generation.counterfactuals.contract import EditRequest, Role
from compo_pipeline.generation.counterfactuals.editors.checks import clean_answer, reason_to_reject
from compo_pipeline.generation.counterfactuals.editors.llm import edit_messages

Bare = Callable[..., EditRequest]
CAPTION, ANSWER = "A dog on a mat.", "A cat on a mat."


@pytest.mark.parametrize(
    "answer",
    [
        "A cat on a mat.",
        "  A cat   on a mat \n",
        "“A cat on a mat.”",
        "1. A cat on a mat",
        "Negative caption: A cat on a mat.",
        'Sure! Here is the edited caption: "A cat on a mat."',
        "Here's the edited caption:\n\nA cat on a mat.",
        "<think>A dog.\nWhat about a cat?</think>\nA cat on a mat.",
        "```text\nA cat on a mat.\n```",
    ],
)
def test_cleaned(answer: str) -> None:
    assert clean_answer(answer, CAPTION) == ANSWER


@pytest.mark.parametrize(
    ("answer", "caption", "text"),
    [
        ("A cat on a mat.", "a dog on a mat", "a cat on a mat"),
        ("a cat on a mat", "A dog on a mat!", "A cat on a mat!"),
        ("'Stop' on a sign", "'Go' on a sign", "'Stop' on a sign"),
        ("caption: a cat", "caption: a dog", "caption: a cat"),
        ("...", "A dog.", "."),
        ("", "A dog", ""),
    ],
)
def test_dressed_as_the_caption(answer: str, caption: str, text: str) -> None:
    assert clean_answer(answer, caption) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("A cat on a mat.\nA dog on a mat.", "more than one line"),
        ("Sure, a cat on a mat.", "talks about the task"),
        ("I'm sorry, but I can't.", "talks about the task"),
        ('A cat on a "mat".', "holds '\"'"),
        ("A cat on a mat. It is red.", "more than one sentence"),
        ("A cat on a mat in a very large red house.", "11 words where the caption has 5"),
        ("a DOG, on a mat!", "unchanged"),
        ("A spoon in a cup.", "keeps less than 50%"),
        ("A spotted dog on mats.", ""),
        ("A dog mat.", "only leaves words out"),
        ("A cat on a mat.", ""),
    ],
)
def test_refusal(bare_request: Bare, text: str, reason: str) -> None:
    found = reason_to_reject(bare_request(CAPTION), text)
    assert (reason in found) if reason else found == ""


def test_the_role_decides(bare_request: Bare) -> None:
    positive = bare_request(CAPTION, "positive")
    assert reason_to_reject(positive, "A hound lies on a rug.") == ""
    for text in ("No dog on a mat.", "A dog isn't on a mat."):
        assert "denies" in reason_to_reject(positive, text)


def test_limits(bare_request: Bare) -> None:
    long = bare_request(" ".join(["dog"] * 60) + ".")
    assert reason_to_reject(long, " ".join(["dog"] * 59) + " red cat.").startswith("61 words, more")
    # Half as many words more, and two of a short caption.
    assert reason_to_reject(bare_request("A dog."), "A dog and cat.") == ""
    assert "where the caption has 2" in reason_to_reject(bare_request("A dog."), "A dog and a cat.")


def test_captions_that_hold_what_is_refused(bare_request: Bare) -> None:
    request = bare_request('A "stop" sign. It is red.')
    assert reason_to_reject(request, 'A "stop" sign. It is blue.') == ""
    assert reason_to_reject(bare_request("Dr. Who on a mat"), "Dr. Who on a bed") == ""


@given(answer=st.text(max_size=60), caption=st.text(min_size=1, max_size=30))
def test_any_answer(answer: str, caption: str) -> None:
    request = EditRequest("id", 0, "negative", caption, Parse("id", 0, caption, (), (), (), (), ()))
    text = clean_answer(answer, caption)
    if not reason_to_reject(request, text):
        assert text and "\n" not in text and text.casefold() != caption.casefold()
    assert reason_to_reject(request, caption)


@pytest.mark.parametrize("role", ["negative", "positive"])
def test_examples_of_the_prompts_pass(bare_request: Bare, role: Role) -> None:
    turns = [turn["content"] for turn in edit_messages("", role)[1:-1]]
    for caption, text in zip(turns[::2], turns[1::2], strict=True):
        assert clean_answer(text, caption) == text
        assert reason_to_reject(bare_request(caption, role), text) == "", text
