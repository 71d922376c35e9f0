"""The caption editor `endpoint`: whole replies, retries, and a server with every kind of fault."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.generation.chat import endpoint
from compo_pipeline.generation.counterfactuals.contract import (
    EditedCaption,
    EditRequest,
    Opening,
)
from compo_pipeline.generation.counterfactuals.editors.llm import EndpointEditor
from compo_pipeline.generation.counterfactuals.settings import EditorEndpointSettings

Bare = Callable[..., EditRequest]
KEY = "counterfactuals.endpoint"
SECRET = "sk-very-secret"


@pytest.fixture
def editor(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., EndpointEditor]:
    """An editor of the fake server: one request at a time, sent once, by default."""
    monkeypatch.setattr(endpoint, "RETRIES", 0)

    def make(**settings: Any) -> EndpointEditor:
        own = EditorEndpointSettings(
            **{"url": chat.url, "model": "fake", "connections": 1, "timeout": 60.0, **settings}
        )
        return EndpointEditor(own, KEY, Opening(0, state=tmp_path))

    return make


def good(turn: Any, number: int, body: dict[str, Any]) -> None:
    """A cat in place of the dog."""
    turn.say(body["messages"][-1]["content"].replace("dog", "cat"))


@pytest.fixture
def captions(bare_request: Bare) -> list[EditRequest]:
    return [bare_request(f"A dog on {number} mats.", sample_id=str(number)) for number in range(12)]


def texts(made: list[EditedCaption | str]) -> list[str]:
    assert all(isinstance(one, EditedCaption) for one in made), made
    return [one.text for one in made if isinstance(one, EditedCaption)]


def test_answers_in_order(chat: Any, editor: Any, captions: list[EditRequest]) -> None:
    first = threading.Event()

    def slow_first(turn: Any, number: int, body: dict[str, Any]) -> None:
        # The first caption's answer comes after some of the others'.
        if " 0 mats" in body["messages"][-1]["content"]:
            assert first.wait(60)
        elif number >= 4:
            first.set()
        good(turn, number, body)

    chat.script = slow_first
    made = list(editor(connections=3).edit(captions))
    assert texts(made) == [f"A cat on {number} mats." for number in range(12)]


def test_what_is_sent(chat: Any, editor: Any, captions: list[EditRequest]) -> None:
    chat.script = good
    list(editor(temperature=0.5, max_tokens=9, more={"top_p": 0.9}).edit(captions[:2]))
    (path, headers, one), (_, _, other) = chat.seen
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    sent = {name: one[name] for name in ("model", "temperature", "max_tokens", "top_p")}
    assert sent == {"model": "fake", "temperature": 0.5, "max_tokens": 9, "top_p": 0.9}
    assert one["messages"][-1]["content"] == captions[0].caption
    assert one["seed"] != other["seed"]
    list(editor(more={"seed": None}).edit(captions[:1]))
    assert "seed" not in chat.seen[-1][2]


def test_a_second_run_asks_nothing(chat: Any, editor: Any, captions: list[EditRequest]) -> None:
    def some_lies(turn: Any, number: int, body: dict[str, Any]) -> None:
        lies = " 3 mats" in body["messages"][-1]["content"]
        turn.say("Nothing.") if lies else good(turn, number, body)

    chat.script = some_lies
    made = list(editor().edit(captions))
    assert [isinstance(one, str) for one in made] == [n == 3 for n in range(12)]
    asked = len(chat.seen)
    assert asked == 11 + 3
    chat.script = lambda turn, number, body: turn.reply(401, "closed")
    assert list(editor().edit(captions)) == made
    assert len(chat.seen) == asked
    with pytest.raises(SettingsError):
        list(editor(model="another").edit(captions))


@pytest.mark.parametrize(
    ("message", "ending", "reason"),
    [
        ({"content": "A dog on 0 mats."}, "stop", "unchanged"),
        ({"content": None}, "stop", "empty"),
        ({"content": None, "refusal": "No cats."}, "stop", "the model refused: 'No cats.'"),
        ({"content": "A cat on 0 mats."}, "content_filter", "finish_reason content_filter"),
    ],
)
def test_what_is_no_answer_is_asked_again_with_another_seed(
    chat: Any,
    editor: Any,
    captions: list[EditRequest],
    message: dict[str, Any],
    ending: str,
    reason: str,
) -> None:
    reply = json.dumps({"choices": [{"message": message, "finish_reason": ending}]})

    def once(turn: Any, number: int, body: dict[str, Any]) -> None:
        good(turn, number, body) if number else turn.reply(200, reply)

    chat.script = once
    (made,) = editor().edit(captions[:1])
    assert made == EditedCaption("A cat on 0 mats.", "attempt 2")
    assert chat.seen[0][2]["seed"] != chat.seen[1][2]["seed"]

    chat.script = lambda turn, number, body: turn.reply(200, reply)
    (failed,) = editor(model="liar").edit(captions[:1])
    assert isinstance(failed, str)
    assert failed.startswith("asked 3 times; the last answer was refused: ")
    assert reason in failed
    assert len(chat.seen) == 5


def test_the_key_is_written_nowhere(
    chat: Any,
    editor: Any,
    captions: list[EditRequest],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FAKE_KEY", SECRET)
    chat.script = lambda turn, number, body: turn.say(f"A cat that says {SECRET}.")
    own = editor(key_variable="FAKE_KEY")
    list(own.edit(captions))
    assert SECRET.encode() not in (tmp_path / "endpoint.sqlite").read_bytes()
    assert SECRET not in str(vars(own))


@pytest.mark.parametrize("held", ["schlüssel", "two\nlines"])
def test_a_key_that_no_header_can_hold(
    editor: Any, captions: list[EditRequest], chat: Any, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setenv("FAKE_KEY", held)
    with pytest.raises(SettingsError, match=rf"{KEY}\.key_variable: .*'FAKE_KEY'") as caught:
        list(editor(key_variable="FAKE_KEY").edit(captions))
    assert held not in str(caught.value) and chat.seen == []


def test_a_server_that_goes_down(
    chat: Any, editor: Any, captions: list[EditRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        good(turn, number, body) if number < 5 else turn.reply(503, "down")

    chat.script = script
    monkeypatch.setattr(endpoint, "GIVE_UP", 3)
    made = []
    with pytest.raises(SettingsError, match=rf"{KEY}\.url: .* none of 3 .*503: down"):
        for one in editor().edit(captions):
            made.append(one)
    assert texts(made[:5]) == [f"A cat on {number} mats." for number in range(5)]
    # Those that got no answer get their chance in a later run.
    asked = len(chat.seen)
    chat.script = good
    assert len(texts(list(editor().edit(captions)))) == 12
    assert len(chat.seen) == asked + 7
