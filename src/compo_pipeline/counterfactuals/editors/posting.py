"""Posting to a server that may be slow, busy, or break off: whole replies, tried again politely."""

from __future__ import annotations

import email.utils
import http.client
import math
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

_PIECE = 2**16
_MOST = 2**24  # bytes of a reply
_AGAIN = frozenset({408, 409, 425, 429})
_TOO_BUSY = 500
_NOT_IMPLEMENTED = 501
_OK = 200

Parsed = TypeVar("Parsed")


class Reply(NamedTuple):
    """What a server says; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Broken(Exception):
    """No whole reply came, or one that makes no sense: worth another try."""


class Rejected(Exception):
    """A reply that another try would not change."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Stopped(Exception):
    """Somebody wants the waiting to end."""


Post = Callable[[str, bytes, Mapping[str, str], float], Reply]
# Waits for the event or for as many seconds; says whether the event came.
Pause = Callable[[threading.Event, float], bool]


@dataclass(frozen=True)
class RetrySettings:
    """How often and after how long a request is sent again.

    Attributes:
        most: times that it is sent again.
        backoff: seconds before the first time, twice as many before each further one; of these
            at least half are waited, by chance.
        longest: most seconds to wait. A server that asks for more (Retry-After) is not waited for.
    """

    most: int = 6
    backoff: float = 1.0
    longest: float = 120.0

    def __post_init__(self) -> None:
        """Counts and seconds."""
        if self.most < 0 or self.backoff < 0 or self.longest < 0:
            raise ValueError(
                "retries: expected most, backoff and longest of 0 at least, got "
                f"{self.most}, {self.backoff} and {self.longest}"
            )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the API key to another address."""

    def redirect_request(self, *_: object) -> None:
        return None


def post(url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> Reply:
    """Post a body, read the reply to its end.

    Args:
        url: of http or https.
        body: what is sent.
        headers: sent with it.
        timeout: seconds for the whole reply, once it has begun, and for each piece of it.

    Raises:
        Broken: no connection, no reply in time, or only a part of one.
    """
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        try:
            response = opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            named = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, named, _read(response, named, timeout))
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error


def _read(
    response: http.client.HTTPResponse | urllib.error.HTTPError,
    headers: Mapping[str, str],
    timeout: float,
) -> bytes:
    """The body, refused when it ends early or never."""
    until, body = time.monotonic() + timeout, b""
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > _MOST:
            raise Broken(f"a reply of more than {_MOST} bytes")
        if time.monotonic() > until:
            raise Broken(f"a reply that took longer than {timeout} s")
    promised = headers.get("content-length", "")
    if promised.isdecimal() and len(body) < int(promised):
        raise Broken(f"a reply that ended after {len(body)} of {promised} bytes")
    return body


def persist(
    send: Callable[[], Reply],
    read: Callable[[Reply], Parsed],
    settings: RetrySettings,
    rng: random.Random,
    stop: threading.Event,
    *,
    pause: Pause = threading.Event.wait,
    now: Callable[[], float] = time.time,
) -> Parsed:
    """Send until a reply can be read: 429, 5xx and broken replies are tried again.

    Args:
        send: sends once; may raise `Broken`.
        read: reads a reply of status 200; may raise `Broken`.
        settings: how often, after how long.
        rng: the waits' share of chance.
        stop: ends all waiting.
        pause: waits.
        now: seconds since 1970, for servers that name a date.

    Raises:
        Broken: the last try failed, too.
        Rejected: a status that stays.
        Stopped: by `stop`.
    """
    for attempt in range(settings.most + 1):
        if stop.is_set():
            raise Stopped
        asked = 0.0
        try:
            reply = send()
            if reply.status == _OK:
                return read(reply)
            said = f"{reply.status}: {' '.join(reply.body.decode(errors='replace').split())[:300]}"
            if not _passes(reply.status):
                raise Rejected(reply.status, said)
            asked = _retry_after(reply.headers, now())
        except Broken as error:
            said = str(error)
        if asked > settings.longest:
            raise Broken(f"{said} (asks to wait {asked:.0f} s, longest is {settings.longest:g})")
        if attempt < settings.most:
            wait = min(settings.backoff * 2.0**attempt, settings.longest)
            if pause(stop, max(asked, wait * (0.5 + rng.random() / 2))):
                raise Stopped
    raise Broken(f"{said} (sent {settings.most + 1} times)")


def _passes(status: int) -> bool:
    return status in _AGAIN or (status >= _TOO_BUSY and status != _NOT_IMPLEMENTED)


def _retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the server asks to wait for, by number or by date; 0 where it does not say."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
