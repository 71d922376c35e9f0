"""The client of an endpoint: whole replies, retries, and a server with every kind of fault."""

import json
import logging
import random
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from compo_pipeline.chat.answers import Answer
from compo_pipeline.chat.requests import (
    BrokenReply,
    Interrupted,
    Pace,
    RefusedRequest,
    Reply,
    RequestsSpent,
    Retries,
    Unreachable,
    chat_completions,
    list_models,
    read_answer,
    with_retries,
)

SECRET = "sk-very-secret"

Headers = dict[str, str]
OK = Reply(200, {}, json.dumps({"choices": [{"message": {"content": "fine"}}]}).encode())


def sent(url: str, key: str = "", timeout: float = 60.0) -> Reply:
    with chat_completions(url, SecretStr(key), timeout) as post:
        return post(b'{"a": 1}')


@pytest.mark.parametrize("end", ["", "/"])
def test_a_whole_reply(chat: Any, end: str) -> None:
    chat.script = lambda turn, number, body: turn.reply(418, "tea", {"Retry-After": "3"})
    reply = sent(chat.url + end, "k")
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (418, b"tea", "3")
    path, headers, body = chat.seen[0]
    sent_body = ("/v1/chat/completions", "Bearer k", {"a": 1})
    assert (path, headers["Authorization"], body) == sent_body


def test_broken_off(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.break_off()
    with pytest.raises(BrokenReply, match="[Ii]ncomplete|without sending complete"):
        sent(chat.url)


def test_a_reply_nested_too_deeply_is_broken() -> None:
    with pytest.raises(BrokenReply, match="nested levels"):
        read_answer(Reply(200, {}, b"[" * 100_000))


def silent(turn: Any) -> None:
    """No reply at all."""
    turn.server.done.wait(60)


def drops_of_a_body(turn: Any) -> None:
    turn.send_response(200)
    turn.send_header("Content-Length", "1000")
    turn.end_headers()
    turn.drip(lambda: b".")


def drops_of_a_header(turn: Any) -> None:
    turn.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    turn.drip(lambda: b"a")


def replies_before_the_reply(turn: Any) -> None:
    turn.drip(lambda: b"HTTP/1.1 102 Processing\r\n\r\n")


def gzip_of_nothing(turn: Any) -> None:
    """Blocks that unpack to no byte, so a client that unpacks sees nothing arrive."""
    turn.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n")
    packer = zlib.compressobj(wbits=31)
    turn.wfile.write(packer.compress(b""))
    turn.drip(lambda: packer.flush(zlib.Z_FULL_FLUSH) or b"\0\0\0\xff\xff")


SLOW = [silent, drops_of_a_body, drops_of_a_header, replies_before_the_reply, gzip_of_nothing]


@pytest.mark.parametrize("slowly", SLOW)
def test_a_deadline_for_all_of_a_request(chat: Any, slowly: Callable[[Any], None]) -> None:
    chat.script = lambda turn, number, body: slowly(turn)
    begun = time.monotonic()
    with pytest.raises(BrokenReply, match="no complete reply within 0.2 s"):
        sent(chat.url, timeout=0.2)
    # Far more than any delay of a busy machine, and less than the server's minute.
    assert time.monotonic() - begun < 50


def test_an_endless_reply(chat: Any) -> None:
    def endless(turn: Any, number: int, body: Any) -> None:
        turn.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        turn.drip(lambda: b" " * 2**20, pause=0)

    chat.script = endless
    with pytest.raises(BrokenReply, match="more than 16777216 bytes"):
        sent(chat.url, timeout=60)


def test_no_reply_is_unpacked(chat: Any) -> None:
    packed = zlib.compress(b" " * 10**7)
    chat.script = lambda turn, number, body: turn.reply(
        200, packed, {"Content-Encoding": "deflate"}
    )
    reply = sent(chat.url)
    assert reply.body == packed
    assert chat.seen[0][1]["Accept-Encoding"] == "identity"
    with pytest.raises(BrokenReply, match="without an answer"):
        read_answer(reply)


@pytest.mark.parametrize("before", [0, 290, 2000])
def test_a_reply_that_repeats_the_key(chat: Any, before: int) -> None:
    """Also where an error would quote the first half of it."""
    chat.script = lambda turn, number, body: turn.reply(500, "x" * before + f" {SECRET}")
    once = Retries(most=0)
    with pytest.raises(BrokenReply) as caught:
        with_retries(
            lambda: sent(chat.url, SECRET),
            once,
            random.Random(0),
            threading.Event(),
            Pace("k", None),
        )
    shown = "".join(traceback.format_exception(caught.value))
    assert "500: " in shown and SECRET[:4] not in shown


def test_a_broken_reply_that_repeats_the_key(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.wfile.write(f"{SECRET}\r\n\r\n".encode())
    with pytest.raises(BrokenReply, match="RemoteProtocolError") as caught:
        sent(chat.url, SECRET)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_no_log_has_the_password_of_the_url(chat: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    chat.script = lambda turn, number, body: turn.reply(200, "fine")
    sent(chat.url.replace("//", f"//me:{SECRET}@"))
    assert chat.seen[0][1]["Authorization"].startswith("Basic ")
    assert "chat/completions" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_server(host: str) -> None:
    with pytest.raises(BrokenReply, match="ConnectionRefusedError: .*127.0.0.1|::1"):
        sent(f"http://{host}:9/v1")


def test_a_redirect_is_not_followed(chat: Any) -> None:
    chat.script = lambda turn, number, body: turn.reply(307, "", {"Location": chat.url + "/other"})
    assert sent(chat.url, "k").status == 307
    assert len(chat.seen) == 1


class Tries:
    """Replies or errors in turn, and the seconds waited between them."""

    def __init__(
        self, *given: Reply | BrokenReply, stop_at: int = 99, most: int | None = None
    ) -> None:
        self.given, self.waits, self.stop_at = list(given), [], stop_at
        self.event, self.pace = threading.Event(), Pace("k", most)

    def send(self) -> Reply:
        one = self.given.pop(0)
        if isinstance(one, BrokenReply):
            raise one
        return one

    def pause(self, stop: threading.Event, seconds: float) -> bool:
        assert stop is self.event
        self.waits.append(seconds)
        return len(self.waits) >= self.stop_at

    def go(self, now: Callable[[], float] = lambda: 0.0, **settings: Any) -> Answer:
        given = Retries(**{"most": 4, "backoff": 1.0, "longest": 100.0, **settings})
        return with_retries(
            self.send,
            given,
            random.Random(0),
            self.event,
            self.pace,
            pause=self.pause,
            now=now,
        )


def busy(status: int = 429, headers: Headers | None = None) -> Reply:
    return Reply(status, headers or {}, b"busy")


def test_back_off() -> None:
    tries = Tries(busy(500), busy(503), BrokenReply("cut"), busy(), OK)
    assert tries.go() == Answer("fine", False)
    for wait, most in zip(tries.waits, [1, 2, 4, 8], strict=True):
        assert most / 2 <= wait <= most
    assert len({wait / most for wait, most in zip(tries.waits, [1, 2, 4, 8], strict=True)}) == 4
    again = Tries(busy(500), busy(503), BrokenReply("cut"), busy(), OK)
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
    with pytest.raises(BrokenReply, match="asks to wait 3600 s, longest is 100"):
        tries.go()
    assert tries.waits == []


def test_the_last_try() -> None:
    tries = Tries(*[busy(500)] * 5, OK)
    with pytest.raises(BrokenReply, match="500: busy .sent 5 times"):
        tries.go()
    assert len(tries.waits) == 4
    with pytest.raises(BrokenReply, match="sent 1 times"):
        Tries(BrokenReply("cut")).go(most=0)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 501, 307])
def test_what_another_try_would_not_change(status: int) -> None:
    tries = Tries(busy(status), OK)
    with pytest.raises(RefusedRequest, match=f"{status}: busy") as caught:
        tries.go()
    assert caught.value.status == status and tries.waits == []


def test_stopped() -> None:
    tries = Tries(*[busy()] * 5, stop_at=2)
    with pytest.raises(Interrupted):
        tries.go()
    assert len(tries.given) == 3
    tries = Tries(OK)
    tries.event.set()
    with pytest.raises(Interrupted):
        tries.go()
    assert len(tries.given) == 1


def test_a_rate_limit_holds_all_connections() -> None:
    """A request that comes after another was told to wait is not sent before that time."""
    tries = Tries(busy(headers={"retry-after": "30"}), OK, OK)
    tries.go(now=lambda: 100.0)
    assert tries.waits == [30.0]
    tries.go(now=lambda: 110.0)
    assert tries.waits == [30.0, 20.0]
    tries.given = [OK]
    tries.go(now=lambda: 131.0)
    assert tries.waits == [30.0, 20.0]


def test_no_more_requests_than_may_be_sent() -> None:
    tries = Tries(busy(500), busy(500), OK, most=2)
    with pytest.raises(RequestsSpent, match=r"k\.max_requests: 2 requests were sent"):
        tries.go()
    assert (tries.pace.sent, len(tries.given)) == (2, 1)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, (7, 3)),
        ({"prompt_tokens": "many"}, (0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": 10**12}, (0, 0)),
        ([], (0, 0)),
        (None, (0, 0)),
    ],
)
def test_counted_tokens(usage: object, counts: tuple[int, int]) -> None:
    body = {"choices": [{"message": {"content": "fine"}}], "usage": usage}
    answer = read_answer(Reply(200, {}, json.dumps(body).encode()))
    assert (answer.prompt_tokens, answer.answer_tokens) == counts


def test_the_models_of_a_server(chat: Any) -> None:
    chat.look = lambda turn: turn.reply(200, "{}")
    assert list_models(chat.url, SecretStr("k"), 60.0).body == b"{}"
    assert chat.looks == ["/v1/models"]
    with pytest.raises(Unreachable):
        list_models("http://127.0.0.1:9/v1", SecretStr(""), 60.0)
