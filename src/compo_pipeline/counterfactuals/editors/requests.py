"""Requests to an OpenAI-compatible endpoint: one reply within limits, and retries."""

from __future__ import annotations

import email.utils
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import httpx
from httpx import codes

from compo_pipeline.counterfactuals.editors.llm import Answer
from compo_pipeline.counterfactuals.settings import RetrySettings
from compo_pipeline.untrusted import parse_json

_MOST = 2**24  # bytes of a reply
_RETRIED = frozenset({408, 409, 425, 429})  # and server errors but one


class BrokenReply(Exception):
    """No complete reply, or one without an answer: worth a retry."""


class RefusedRequest(Exception):
    """A reply that a retry would not change."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(Exception):
    """The run ends: no further waiting."""


class Reply(NamedTuple):
    """A complete reply; header names in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# Waits for the event or for as many seconds; returns whether the event is set.
Pause = Callable[[threading.Event, float], bool]


def post(client: httpx.Client, url: str, content: bytes, timeout: float) -> Reply:
    """Post a body and read the whole reply within `timeout` seconds after its start.

    Redirects are not followed: they would send the API key to another address.

    Raises:
        BrokenReply: no connection, no reply in time, or only a part of one.
    """
    body = b""
    try:
        with client.stream("POST", url, content=content) as response:
            deadline = time.monotonic() + timeout
            for piece in response.iter_bytes():
                body += piece
                if len(body) > _MOST:
                    raise BrokenReply(f"a reply of more than {_MOST} bytes")
                if time.monotonic() > deadline:
                    raise BrokenReply(f"a reply that took longer than {timeout} s")
            return Reply(response.status_code, response.headers, body)
    except httpx.HTTPError as error:
        raise BrokenReply(f"{type(error).__name__}: {error}") from error


def read_answer(reply: Reply) -> Answer:
    """The answer in the first choice of a reply.

    Raises:
        BrokenReply: there is none.
    """
    try:
        choice = parse_json(reply.body)["choices"][0]
        text = str(choice["message"]["content"] or "")
        text.encode()  # half of a surrogate pair, which JSON can spell, fits into no file
        return Answer(text, choice.get("finish_reason") == "length")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenReply(f"a reply without an answer ({type(error).__name__}: {error})") from error


def with_retries(
    send: Callable[[], Reply],
    settings: RetrySettings,
    rng: random.Random,
    stop: threading.Event,
    *,
    pause: Pause = threading.Event.wait,
    now: Callable[[], float] = time.time,
) -> Answer:
    """Send until there is an answer: 429, 5xx and broken replies are retried.

    Args:
        send: sends the request once.
        settings: how often, after how long.
        rng: draws the jitter of the waits.
        stop: ends all waiting.
        pause: waits.
        now: seconds since 1970, for servers that send a date.

    Raises:
        BrokenReply: the last try failed, too.
        RefusedRequest: a status that a retry does not change.
        Interrupted: by `stop`.
    """
    for attempt in range(settings.most + 1):
        if stop.is_set():
            raise Interrupted
        requested = 0.0
        try:
            reply = send()
            if reply.status == codes.OK:
                return read_answer(reply)
            text = " ".join(reply.body.decode(errors="replace").split())[:300]
            reason = f"{reply.status}: {text}"
            passing = codes.is_server_error(reply.status) and reply.status != codes.NOT_IMPLEMENTED
            if reply.status not in _RETRIED and not passing:
                raise RefusedRequest(reply.status, reason)
            requested = _retry_after(reply.headers, now())
        except BrokenReply as error:
            reason = str(error)
        if requested > settings.longest:
            limit = f"asks to wait {requested:.0f} s, longest is {settings.longest:g}"
            raise BrokenReply(f"{reason} ({limit})")
        if attempt < settings.most:
            wait = min(settings.backoff * 2.0**attempt, settings.longest)
            if pause(stop, max(requested, wait * (0.5 + rng.random() / 2))):
                raise Interrupted
    raise BrokenReply(f"{reason} (sent {settings.most + 1} times)")


def _retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the server asks to wait, given as a number or a date; 0 where it does not."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
