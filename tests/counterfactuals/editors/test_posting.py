"""Whole replies from a real socket; tries and waits without real waiting."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from compo_pipeline.counterfactuals.editors.posting import (
    Broken,
    Rejected,
    Reply,
    RetrySettings,
    Stopped,
    persist,
    post,
)

Headers = dict[str, str]
OK = Reply(200, {}, b"fine")


def test_a_whole_reply(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.reply(418, "tea", {"Retry-After": "3"})
    reply = post(chat.url + "/x", b'{"a": 1}', {"Authorization": "Bearer k"}, 5.0)
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (418, b"tea", "3")
    path, headers, body = chat.seen[0]
    assert (path, headers["Authorization"], body) == ("/v1/x", "Bearer k", {"a": 1})


def test_broken_off(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.break_off()
    with pytest.raises(Broken, match="ended after 13 of 1000"):
        post(chat.url, b"{}", {}, 5.0)


def test_too_slow(chat: Any) -> None:
    done = threading.Event()
    chat.script = lambda turn, number, body: done.wait(10)
    with pytest.raises(Broken, match="[Tt]ime"):
        post(chat.url, b"{}", {}, 0.1)
    done.set()


def test_drop_by_drop(chat: Any) -> None:
    done = threading.Event()

    def drip(turn: Any, number: int, body: Any) -> None:
        turn.send_response(200)
        turn.send_header("Content-Length", "1000")
        turn.end_headers()
        while not done.wait(0.02):
            turn.wfile.write(b".")

    chat.script = drip
    with pytest.raises(Broken, match="longer than 0.2 s"):
        post(chat.url, b"{}", {}, 0.2)
    done.set()


def test_nobody_there(chat: Any) -> None:
    with pytest.raises(Broken, match="refused"):
        post("http://127.0.0.1:9/v1", b"{}", {}, 5.0)


def test_a_redirect_is_not_followed(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.reply(307, "", {"Location": chat.url + "/other"})
    assert post(chat.url, b"{}", {"Authorization": "Bearer k"}, 5.0).status == 307
    assert len(chat.seen) == 1


class Tries:
    """Replies or errors in turn, and the seconds waited between them."""

    def __init__(self, *given: Reply | Broken, stop_at: int = 99) -> None:
        self.given, self.waits, self.stop_at = list(given), [], stop_at
        self.event = threading.Event()

    def send(self) -> Reply:
        one = self.given.pop(0)
        if isinstance(one, Broken):
            raise one
        return one

    def pause(self, stop: threading.Event, seconds: float) -> bool:
        assert stop is self.event
        self.waits.append(seconds)
        return len(self.waits) >= self.stop_at

    def go(self, now: Callable[[], float] = lambda: 0.0, **settings: Any) -> bytes:
        given = RetrySettings(**{"most": 4, "backoff": 1.0, "longest": 100.0, **settings})
        return persist(
            self.send,
            lambda reply: reply.body,
            given,
            random.Random(0),
            self.event,
            pause=self.pause,
            now=now,
        )


def busy(status: int = 429, headers: Headers | None = None) -> Reply:
    return Reply(status, headers or {}, b"busy")


def test_back_off() -> None:
    tries = Tries(busy(500), busy(503), Broken("cut"), busy(), OK)
    assert tries.go() == b"fine"
    for wait, most in zip(tries.waits, [1, 2, 4, 8], strict=True):
        assert most / 2 <= wait <= most
    assert len({wait / most for wait, most in zip(tries.waits, [1, 2, 4, 8], strict=True)}) == 4
    again = Tries(busy(500), busy(503), Broken("cut"), busy(), OK)
    again.go()
    assert again.waits == tries.waits


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("7", 7, 7),
        ("0.1", 0.5, 1),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 20, 20),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.5, 1),
        ("soon", 0.5, 1),
        ("-5", 0.5, 1),
        ("nan", 0.5, 1),
        ("", 0.5, 1),
    ],
)
def test_retry_after(value: str, least: float, most: float) -> None:
    tries = Tries(busy(headers={"retry-after": value}), OK)
    tries.go(now=lambda: 10.0)
    assert least <= tries.waits[0] <= most


def test_a_server_that_asks_for_too_long_is_not_waited_for() -> None:
    tries = Tries(busy(headers={"retry-after": "3600"}), OK)
    with pytest.raises(Broken, match="asks to wait 3600 s, longest is 100"):
        tries.go()
    assert tries.waits == []


def test_the_last_try() -> None:
    tries = Tries(*[busy(500)] * 5, OK)
    with pytest.raises(Broken, match="500: busy .sent 5 times"):
        tries.go()
    assert len(tries.waits) == 4
    with pytest.raises(Broken, match="sent 1 times"):
        Tries(Broken("cut")).go(most=0)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 501, 307])
def test_what_another_try_would_not_change(status: int) -> None:
    tries = Tries(busy(status), OK)
    with pytest.raises(Rejected, match=f"{status}: busy") as caught:
        tries.go()
    assert caught.value.status == status and tries.waits == []


def test_stopped() -> None:
    tries = Tries(*[busy()] * 5, stop_at=2)
    with pytest.raises(Stopped):
        tries.go()
    assert len(tries.given) == 3
    tries = Tries(OK)
    tries.event.set()
    with pytest.raises(Stopped):
        tries.go()
    assert len(tries.given) == 1


@pytest.mark.parametrize("values", [{"most": -1}, {"backoff": -1}, {"longest": -1}])
def test_settings(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="retries: expected"):
        RetrySettings(**values)
