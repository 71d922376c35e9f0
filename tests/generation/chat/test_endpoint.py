"""The client of an endpoint: whole replies, retries, and a server with every kind of fault."""

import json
import logging
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.generation.chat import endpoint
from compo_pipeline.generation.chat.answers import Answer
from compo_pipeline.generation.chat.endpoint import BrokenReply, Endpoint, NoAnswer, read_answer
from compo_pipeline.generation.chat.settings import EndpointSettings

SECRET = "sk-very-secret"
Asked = list[Answer | NoAnswer]


@pytest.fixture
def ask(chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Answers to questions, by default without a pause between retries."""
    monkeypatch.setenv("FAKE_KEY", SECRET)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)

    def make(*questions: str, retries: int = 0, **given: Any) -> Asked:
        monkeypatch.setattr(endpoint, "RETRIES", retries)
        settings = EndpointSettings(**{"url": chat.url, "model": "m", "connections": 1, **given})
        client = Endpoint(settings, key="k", cache=tmp_path / "answers.sqlite")
        return list(client.each(lambda ask, one: ask(one, {"a": one}), questions or ["one"]))

    return make


def says(text: str, **more: Any) -> Callable[..., None]:
    reply = json.dumps({"choices": [{"message": {"content": text}}], **more})
    return lambda turn, number, body: turn.reply(200, reply)


def reason(found: Asked) -> str:
    (one,) = found
    assert isinstance(one, NoAnswer)
    return str(one)


@pytest.mark.parametrize("end", ["", "/"])
def test_an_answer(chat: Any, ask: Any, end: str) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    chat.script = says("fine", usage=usage)
    (answer,) = ask(url=chat.url + end, key_variable="FAKE_KEY")
    assert answer[:5] == ("fine", False, "", 7, 3) and answer.date
    path, headers, body = chat.seen[0]
    sent = ("/v1/chat/completions", f"Bearer {SECRET}", {"a": "one"})
    assert (path, headers["Authorization"], body) == sent


def test_nothing_that_the_environment_has_for_another_server_is_sent(
    chat: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway: {SECRET}\nauthorization: {SECRET}")
    chat.script = says("fine")
    ask()
    assert SECRET not in str(chat.seen[0][1])


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[" * 100_000,
        b'{"choices": []}',
        b'{"choices": "none"}',
        b'{"error": "x"}',
        b"[1]",
        # Half of a pair, which no file can hold.
        rb'{"choices": [{"message": {"content": "A \ud83d cat."}}]}',
        *(
            b'{"choices": [{"message": {"content": "Yes"}, "logprobs": {"content": [%s]}}]}' % first
            for first in (
                b"{}",
                b'{"top_logprobs": [{"token": "Yes", "logprob": null}]}',
                rb'{"top_logprobs": [{"token": "\ud83d", "logprob": -1}]}',
            )
        ),
    ],
)
def test_no_answer_in_a_reply(body: bytes) -> None:
    with pytest.raises(BrokenReply, match="a reply without an answer"):
        read_answer(body)


def silent(turn: Any) -> None:
    """No reply at all."""
    turn.server.done.wait(60)


def drops_of_a_header(turn: Any) -> None:
    turn.wfile.write(b"HTTP/1.1 200 OK\r\n")
    turn.drip(lambda: b"X-More: 1\r\n")


def drops_of_a_body(turn: Any) -> None:
    turn.send_response(200)
    turn.send_header("Content-Length", "1000")
    turn.end_headers()
    turn.drip(lambda: b".")


def gzip_of_nothing(turn: Any) -> None:
    """Blocks that unpack to no byte, so a client that unpacks sees nothing arrive."""
    turn.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n")
    packer = zlib.compressobj(wbits=31)
    turn.wfile.write(packer.compress(b""))
    turn.drip(lambda: packer.flush(zlib.Z_FULL_FLUSH) or b"\0\0\0\xff\xff")


@pytest.mark.parametrize("slowly", [silent, drops_of_a_header, drops_of_a_body, gzip_of_nothing])
def test_a_deadline_for_all_of_a_request(
    chat: Any, ask: Any, slowly: Callable[[Any], None]
) -> None:
    chat.script = lambda turn, number, body: slowly(turn)
    assert "no complete reply within 0.2 s" in reason(ask(timeout=0.2))


def test_an_endless_reply(chat: Any, ask: Any) -> None:
    def endless(turn: Any, number: int, body: Any) -> None:
        turn.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        turn.drip(lambda: b" " * 2**20, pause=0)

    chat.script = endless
    assert "more than 16777216 bytes" in reason(ask())


def test_no_reply_is_unpacked(chat: Any, ask: Any) -> None:
    packed = zlib.compress(b" " * 10**7)
    chat.script = lambda turn, number, body: turn.reply(
        200, packed, {"Content-Encoding": "deflate"}
    )
    assert "without an answer" in reason(ask())
    assert chat.seen[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("before", [0, 290, 2000])
def test_a_reply_that_repeats_the_key(chat: Any, ask: Any, before: int) -> None:
    """Also where an error would quote the first half of it."""
    chat.script = lambda turn, number, body: turn.reply(500, "x" * before + f" {SECRET}")
    found = reason(ask(key_variable="FAKE_KEY"))
    assert "500: " in found and SECRET[:4] not in found


def test_no_log_has_the_password_of_the_url(
    chat: Any, ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    chat.script = says("fine")
    ask(url=chat.url.replace("//", f"//me:{SECRET}@"))
    assert chat.seen[0][1]["Authorization"].startswith("Basic ")
    assert "chat/completions" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1"])
def test_no_server_is_told_at_once(ask: Any, url: str) -> None:
    with pytest.raises(SettingsError, match=r"k\.url: nothing answers at http://.*ConnectError"):
        ask(url=url, retries=6)


@pytest.mark.parametrize("to", ["/other", "http://elsewhere.example/v1"])
def test_a_redirect_is_not_followed(chat: Any, ask: Any, to: str) -> None:
    chat.script = lambda turn, number, body: turn.reply(307, "", {"Location": to})
    with pytest.raises(SettingsError, match=rf"refuses every request \(307: {to}\); check k\.url"):
        ask(retries=2)
    assert len(chat.seen) == 1


TROUBLES: list[Callable[[Any], None]] = [
    lambda turn: turn.reply(429, "slow down"),
    lambda turn: turn.reply(500, "oh"),
    lambda turn: turn.break_off(),
    lambda turn: turn.reply(200, "<html>"),
]


def test_troubles_that_pass(chat: Any, ask: Any) -> None:
    def script(turn: Any, number: int, body: dict[str, Any]) -> None:
        TROUBLES[number](turn) if number < 4 else says("fine")(turn, number, body)

    chat.script = script
    (answer,) = ask(retries=4)
    assert answer.text == "fine" and len(chat.seen) == 5
    assert len({str(body) for _, _, body in chat.seen}) == 1


def test_troubles_that_do_not_pass(chat: Any, ask: Any) -> None:
    chat.script = lambda turn, number, body: turn.reply(503, "busy")
    assert "503: busy" in reason(ask(retries=2))
    assert len(chat.seen) == 3


def test_a_server_that_asks_for_too_long_is_not_waited_for(chat: Any, ask: Any) -> None:
    chat.script = lambda turn, number, body: turn.reply(429, "busy", {"Retry-After": "3600"})
    assert "429: busy" in reason(ask(retries=2))
    assert len(chat.seen) == 1


def test_a_run_that_ends_waits_for_no_retry(chat: Any, ask: Any) -> None:
    def script(turn: Any, number: int, body: Any) -> None:
        if body["a"] == "one":
            turn.reply(429, "busy", {"Retry-After": "100"})
        else:
            turn.reply(402, "no money")

    chat.script, start = script, time.monotonic()
    with pytest.raises(SettingsError, match="402"):
        ask("one", "two", retries=2, connections=2)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("status", "mends"),
    [
        (401, "key_variable .now FAKE_KEY"),
        (402, "key_variable .now FAKE_KEY"),
        (404, "url or model"),
        (501, "url"),
    ],
)
def test_what_no_request_would_change(chat: Any, ask: Any, status: int, mends: str) -> None:
    chat.script = lambda turn, number, body: turn.reply(status, f"no {SECRET}")
    refused = rf"refuses every request .{status}: no \*\*\*.*k\.{mends}"
    with pytest.raises(SettingsError, match=refused) as caught:
        ask("one", "two", retries=2, key_variable="FAKE_KEY")
    assert len(chat.seen) == 1 and SECRET not in str(caught.value)
