"""Requests to an OpenAI-compatible endpoint: one reply within limits, and retries.

By httpx alone: the package openai retries by rules of its own. It repeats a request that the server
does not implement (501), repeats none whose reply is broken, and its waits can be neither set nor
interrupted. Without its retries it saves fewer lines than the limits of its replies need.
"""

from __future__ import annotations

import email.utils
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from httpx import codes
from pydantic import SecretStr

from compo_pipeline.chat.answers import Answer
from compo_pipeline.configuration.settings import SettingsError, masked
from compo_pipeline.storage.untrusted import parse_json

_MAX_BYTES = 2**24  # bytes of a reply
_RETRIED = frozenset({408, 409, 425, 429})  # and server errors but one
_QUOTED = 300  # characters of a reply in an error
_MOST_TOKENS = 10**9  # of a reply; more are no count


class Retries(NamedTuple):
    """How often, and after how many seconds, a request is sent again.

    Attributes:
        most: times that a request is sent again.
        backoff: seconds before the first time, doubled before each further one; at least half of
            them are waited, drawn at random.
        longest: most seconds to wait; a server that asks for more (Retry-After) counts as not
            answering.
    """

    most: int = 6
    backoff: float = 1.0
    longest: float = 120.0


class BrokenReply(Exception):
    """Error for an incomplete HTTP reply, or one without an answer; the request is retried."""


class Unreachable(BrokenReply):
    """Error for a failed connection: the host is not known, or nothing listens there."""


class RefusedRequest(Exception):
    """Error for an HTTP status that a retry does not change, such as 400 or 401."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(Exception):
    """Error for a request that is not sent, or not sent again, because the run ends."""


class RequestsSpent(SettingsError):
    """Error for a run that has sent as many requests as `max_requests` allows."""


class Pace:
    """Rate limit and request counter, shared by all connections to a server."""

    def __init__(self, key: str, most: int | None) -> None:
        """Nothing is sent yet.

        Args:
            key: the YAML key of the endpoint, for the error.
            most: requests that a run sends at most; None for any number.
        """
        self._key, self._most, self._lock = key, most, threading.Lock()
        self.sent = 0
        self.closed_until = 0.0  # seconds since 1970

    def take(self) -> None:
        """Count a request that is about to be sent; raise an error beyond the run's maximum.

        Raises:
            RequestsSpent: there may be no further one.
        """
        with self._lock:
            if self._most is not None and self.sent >= self._most:
                raise RequestsSpent(
                    f"{self._key}.max_requests: {self._most:,} requests were sent, as many as a "
                    "run may send; their answers are stored, and the same command asks the rest: "
                    "run it again, or raise the number"
                )
            self.sent += 1

    def pause_until(self, until: float) -> None:
        """Send no request before a time that the server has named, in seconds since 1970."""
        with self._lock:
            self.closed_until = max(self.closed_until, until)


class Reply(NamedTuple):
    """A complete HTTP reply: status, body, and headers by case-insensitive name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# Waits for the event or for as many seconds; returns whether the event is set.
Pause = Callable[[threading.Event, float], bool]
Post = Callable[[bytes], Reply]
"""Posts a body and returns the complete reply. Raises `BrokenReply`: no connection, no complete
reply in time, or too large a one."""
_READ, _ASK = ("GET", "models"), ("POST", "chat/completions")  # method and path


@contextmanager
def chat_completions(url: str, api_key: SecretStr, timeout: float) -> Iterator[Post]:
    """Context manager that gives a thread-safe function which posts to `<url>/chat/completions`.

    One deadline holds from the connection to the last byte. Time limits of single reads would not
    do: a server that sends a byte of a header each second never exceeds them. So requests run in
    an event loop, in a thread of its own, where they can be cancelled at any point.

    Replies are not compressed: a small one could unpack to gigabytes. Redirects are not followed:
    they would send the API key to another address. A reply that repeats the API key has `***` in
    its place.

    Args:
        url: of the server, without `/chat/completions`.
        api_key: empty where none is sent.
        timeout: seconds from the start of a request to the end of its reply.
    """
    client = _client(url, api_key)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
        yield partial(portal.call, _send, client, timeout, api_key, *_ASK)


def list_models(url: str, api_key: SecretStr, timeout: float) -> Reply:
    """Request the list of models at `<url>/models`; returns the HTTP reply, which is not parsed.

    Most servers have it. The arguments are those of `chat_completions`.

    Raises:
        Unreachable: there is no connection.
        BrokenReply: there is no complete reply.
    """
    return anyio.run(_request_models, url, api_key, timeout)


async def _request_models(url: str, api_key: SecretStr, timeout: float) -> Reply:
    """Request `<url>/models` and read the complete reply."""
    async with _client(url, api_key) as client:
        return await _send(client, timeout, api_key, *_READ)


def _client(url: str, api_key: SecretStr) -> httpx.AsyncClient:
    """HTTP client that sends password and API key in headers, so that its logs hold neither."""
    address = httpx.URL(url)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key.get_secret_value()}"
    return httpx.AsyncClient(
        base_url=address.copy_with(userinfo=b""),
        headers=headers,
        auth=(address.username, address.password) if address.userinfo else None,
        timeout=None,
        limits=httpx.Limits(),
    )


async def _send(
    client: httpx.AsyncClient,
    timeout: float,
    api_key: SecretStr,
    method: str,
    path: str,
    content: bytes | None = None,
) -> Reply:
    """Send an HTTP request and read the complete reply before the deadline."""
    body = bytearray()
    try:
        with anyio.fail_after(timeout):
            async with client.stream(method, path, content=content) as response:
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        raise BrokenReply(f"a reply of more than {_MAX_BYTES} bytes")
    except TimeoutError:
        raise BrokenReply(f"no complete reply within {timeout:g} s") from None
    except httpx.HTTPError as error:
        cause = _system_error(error)
        # Its text may quote what the server sent.
        text = _mask_key(f"{type(cause).__name__}: {cause}".encode(), api_key).decode()
        kind = Unreachable if isinstance(error, httpx.ConnectError) else BrokenReply
        raise kind(masked(text)) from None
    return Reply(response.status_code, response.headers, _mask_key(bytes(body), api_key))


def _system_error(error: httpx.HTTPError) -> BaseException:
    """The operating system's error behind an httpx error; the httpx error if there is none."""
    behind: BaseException | None = error
    while behind and not (isinstance(behind, OSError) and behind.errno):
        if isinstance(behind, BaseExceptionGroup):  # an attempt for each address of a name
            behind = behind.exceptions[0]
        else:
            behind = behind.__cause__ or behind.__context__
    return behind or error


def _mask_key(text: bytes, api_key: SecretStr) -> bytes:
    """Replace the API key in a text by `***`."""
    return text.replace(api_key.get_secret_value().encode(), b"***") if api_key else text


def read_answer(reply: Reply) -> Answer:
    """Parse the answer in an HTTP reply: the first choice of a chat completion.

    Raises:
        BrokenReply: there is none.
    """
    try:
        content = parse_json(reply.body)
        choice = content["choices"][0]
        message, ending = choice["message"], choice.get("finish_reason")
        text, refusal = (str(message.get(name) or "") for name in ("content", "refusal"))
        # Half of a surrogate pair, which JSON can spell, fits into no file.
        (text + refusal).encode()
        if ending == "content_filter":
            refusal = "finish_reason content_filter"
        return Answer(text, ending == "length", refusal, *_token_counts(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenReply(f"a reply without an answer ({type(error).__name__}: {error})") from error


def _token_counts(content: Mapping[str, object]) -> tuple[int, int]:
    """Numbers of prompt and answer tokens that the server reports; 0 where it reports none."""
    usage = content.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    found = (counts.get("prompt_tokens"), counts.get("completion_tokens"))
    asked, answered = (n if isinstance(n, int) and 0 <= n < _MOST_TOKENS else 0 for n in found)
    return asked, answered


def with_retries(
    send: Callable[[], Reply],
    retries: Retries,
    rng: random.Random,
    stop: threading.Event,
    pace: Pace,
    *,
    pause: Pause = threading.Event.wait,
    now: Callable[[], float] = time.time,
) -> Answer:
    """Send a request until it is answered; status 429, 5xx and broken replies are retried.

    Args:
        send: sends the request once.
        retries: how often, after how long.
        rng: draws the jitter of the waits.
        stop: ends all waiting.
        pace: where the server asks one connection to wait, all do.
        pause: waits.
        now: seconds since 1970, for servers that send a date.

    Raises:
        BrokenReply: the last try failed, too.
        RefusedRequest: a status that a retry does not change.
        Interrupted: by `stop`.
        RequestsSpent: there may be no further request.
    """
    waited_until = 0.0
    for attempt in range(retries.most + 1):
        wait = 0.0
        if attempt:
            longest = min(retries.backoff * 2.0 ** (attempt - 1), retries.longest)
            wait = longest * (0.5 + rng.random() / 2)
        if pace.closed_until > waited_until:
            waited_until = pace.closed_until
            wait = max(wait, waited_until - now())
        if stop.is_set() or (wait > 0 and pause(stop, wait)):
            raise Interrupted
        pace.take()
        requested = 0.0
        try:
            reply = send()
            if reply.status == codes.OK:
                return read_answer(reply)
            said = reply.headers.get("location") or reply.body.decode(errors="replace")
            reason = f"{reply.status}: {masked(' '.join(said.split())[:_QUOTED])}"
            if not _is_temporary(reply.status):
                raise RefusedRequest(reply.status, reason)
            requested = _retry_after(reply.headers, now())
        except BrokenReply as error:
            reason = str(error)
        if requested > retries.longest:
            limit = f"asks to wait {requested:.0f} s, longest is {retries.longest:g}"
            raise BrokenReply(f"{reason} ({limit})")
        if requested:
            pace.pause_until(now() + requested)
    raise BrokenReply(f"{reason} (sent {retries.most + 1} times)")


def _is_temporary(status: int) -> bool:
    """Whether an HTTP status is temporary, such as 503, so that the request is worth a retry."""
    passing = codes.is_server_error(status) and status != codes.NOT_IMPLEMENTED
    return passing or status in _RETRIED


def _retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds to wait by the `Retry-After` header (a number or a date); 0 without the header."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
