"""Concurrent requests to an OpenAI-compatible endpoint: `POST <url>/chat/completions`."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from httpx import codes
from pydantic import SecretStr

from compo_pipeline.core import seeding
from compo_pipeline.core.compute import in_order
from compo_pipeline.core.settings import SettingsError, masked
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.untrusted import parse_json
from compo_pipeline.generation.chat.answers import Answer, dated
from compo_pipeline.generation.chat.settings import EndpointSettings

RETRIES = 6
"""Times that a request is sent again."""
BACK_OFF = 1.0
"""Most seconds before the first retry, doubled before each further one; half of them at least."""
GIVE_UP = 10
"""Questions in a row without any answer, after which the run stops."""
_LONGEST = 120.0  # seconds; a server that asks for a longer wait (Retry-After) does not answer
_MAX_BYTES = 2**24  # bytes of a reply
_QUOTED = 300  # characters of a reply in an error
_AHEAD = 4  # questions read ahead for each connection
# Statuses that a retry may change, besides server errors.
_TEMPORARY = frozenset({408, 409, 425, 429})
# Replies after which no request at all can succeed, and the keys to correct.
_KEYS_TO_CORRECT = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}

Item = TypeVar("Item")
Result = TypeVar("Result")
Ask = Callable[[str, Mapping[str, Any]], Answer]
"""The stored answer of a key, else the server's answer to a request's body."""


class NoAnswer(Exception):
    """Reason why a question has no answer.

    It is not stored, and another run asks again.
    """


class BrokenReply(Exception):
    """Error for an incomplete HTTP reply, or one without an answer.

    The request is sent again.
    """


class _Unreachable(BrokenReply):
    """Error for a failed connection: the host is not known, or nothing listens there."""


class Endpoint:
    """Client of a model on an OpenAI-compatible server.

    Answers are stored before they are used.

    Args:
        settings: settings of the endpoint.
        key: YAML key of the settings, for errors.
        seed: seed of the run. It draws the waits.
        cache: file of stored answers.
    """

    def __init__(self, settings: EndpointSettings, *, key: str, seed: int, cache: Path) -> None:
        self._settings, self._key, self._seed = settings, key, seed
        self.answers = KeyValueStore(cache, Answer)
        self._numbers = itertools.count(1)  # of requests
        self._reached = False  # whether the server has ever replied
        self._failure: SettingsError | None = None  # of another thread

    def each(
        self, work: Callable[[Ask, Item], Result], items: Iterable[Item]
    ) -> Iterator[Result | NoAnswer]:
        """Yield the result of the work function for each item, or the reason of its `NoAnswer`.

        They come in order; several run at once.

        When the loop over them ends early, requests under way are finished and stored; the others
        are not sent.

        Args:
            work: function that asks for an item, in one of as many threads as there are
                connections.
            items: read as far ahead as they can be asked.

        Raises:
            SettingsError: no request can succeed: a wrong key, address or model, or `GIVE_UP`
                items in a row without an answer; or as many requests were sent as may be.
        """
        own, stop, unanswered = self._settings, threading.Event(), 0
        secret = api_key(own, self._key)
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(_client(own.url, secret)) as client,
            self.answers.many_writes(),
            ThreadPoolExecutor(own.connections, "endpoint") as pool,
        ):
            ask = partial(self._ask, partial(portal.call, _send, client, own.timeout, secret), stop)
            results = in_order(
                pool,
                lambda item: self._result(work, ask, item, stop),
                items,
                own.connections * _AHEAD,
            )
            try:
                for result in results:
                    unanswered = unanswered + 1 if isinstance(result, NoAnswer) else 0
                    if isinstance(result, NoAnswer) and unanswered == GIVE_UP:
                        raise SettingsError(
                            f"{self._key}.url: {own.url} answered none of {GIVE_UP} questions in a "
                            f"row; the last: {result}. Check that the server runs and the "
                            f"settings under {self._key}; answers so far are stored"
                        )
                    yield result
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _result(
        self, work: Callable[[Ask, Item], Result], ask: Ask, item: Item, stop: threading.Event
    ) -> Result | NoAnswer:
        """Result of the work function for an item, or the reason why it has no answer."""
        try:
            return work(ask, item)
        except NoAnswer as error:
            return error
        except SettingsError as error:
            self._failure = error
            stop.set()  # before another thread sends what cannot succeed either
            raise

    def _ask(
        self,
        post: Callable[[bytes], httpx.Response],
        stop: threading.Event,
        key: str,
        body: Mapping[str, Any],
    ) -> Answer:
        """Answer to a request, stored or from the server.

        What a retry may change is sent again.

        Raises:
            NoAnswer: the last try failed, too, or a retry would not change the reply.
            SettingsError: no request can succeed, or there may be no further one.
        """
        if stored := self.answers.get([key]):
            return stored[key]
        content, asked = json.dumps(body).encode(), 0.0
        draws = seeding.rng(self._seed, key)
        waits = [BACK_OFF * 2**n * (0.5 + draws.random() / 2) for n in range(RETRIES)]
        for wait in (0.0, *waits):
            if stop.wait(max(wait, asked)):
                raise self._failure or NoAnswer("the run ends")
            self._count_request()
            try:
                reply, asked = post(content), 0.0
                self._reached = True
                if reply.status_code == codes.OK:
                    # The first answer to a request counts, whichever process got it.
                    self.answers.put({key: dated(read_answer(reply.content))}, replace=False)
                    return self.answers.get([key])[key]
                reason = self._reason_to_retry(reply)
                asked = retry_after(reply.headers)
            except BrokenReply as error:
                reason = str(error)
                if isinstance(error, _Unreachable) and not self._reached:
                    raise SettingsError(
                        f"{self._key}.url: nothing answers at {self._settings.url} ({error}); "
                        "start the server, or correct the address"
                    ) from None
            if asked > _LONGEST:
                raise NoAnswer(f"no answer: {reason} (asks to wait {asked:.0f} s)")
        raise NoAnswer(f"no answer: {reason} (sent {RETRIES + 1} times)")

    def _count_request(self) -> None:
        """Count a request that is about to be sent, and raise an error beyond the run's maximum."""
        most = self._settings.max_requests
        if most is not None and next(self._numbers) > most:
            raise SettingsError(
                f"{self._key}.max_requests: {most:,} requests were sent, as many as a run may "
                "send; their answers are stored, and the same command asks the rest: run it again, "
                "or raise the number"
            )

    def _reason_to_retry(self, reply: httpx.Response) -> str:
        """Message of a server in place of an answer.

        Raises an error if a retry would not change it.
        """
        own, key, status = self._settings, self._key, reply.status_code
        said = reply.headers.get("location") or reply.content.decode(errors="replace")
        reason = f"{status}: {masked(' '.join(said.split())[:_QUOTED])}"
        if wrong := _KEYS_TO_CORRECT.get(status):
            held = f" (now {own.key_variable or 'null'})" if wrong == "key_variable" else ""
            raise SettingsError(
                f"{key}: {own.url} refuses every request ({reason}); check {key}.{wrong}{held}"
            )
        if not codes.is_server_error(status) and status not in _TEMPORARY:
            raise NoAnswer(f"refused: {reason}")
        return reason


def _client(url: str, secret: SecretStr) -> httpx.AsyncClient:
    """HTTP client that sends password and API key in headers, so that its logs hold neither.

    Replies are not compressed: a small one could unpack to gigabytes. Redirects are not followed:
    they would send the API key to another address.
    """
    address = httpx.URL(url)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if secret:
        headers["Authorization"] = f"Bearer {secret.get_secret_value()}"
    return httpx.AsyncClient(
        base_url=address.copy_with(userinfo=b""),
        headers=headers,
        auth=(address.username, address.password) if address.userinfo else None,
        timeout=None,
        limits=httpx.Limits(),
    )


async def _send(
    client: httpx.AsyncClient, timeout: float, secret: SecretStr, content: bytes
) -> httpx.Response:
    """Post a request and read the complete reply, in which `***` replaces the API key.

    One deadline holds from the connection to the last byte. Time limits of single reads would not
    do: a server that sends a byte of a header each second never exceeds them. So requests run in
    an event loop, in a thread of its own, where they can be cancelled at any point.
    """
    body = bytearray()
    try:
        with anyio.fail_after(timeout):
            async with client.stream("POST", "chat/completions", content=content) as response:
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        raise BrokenReply(f"a reply of more than {_MAX_BYTES} bytes")
    except TimeoutError:
        raise BrokenReply(f"no complete reply within {timeout:g} s") from None
    except httpx.HTTPError as error:
        # Its text may quote what the server sent.
        text = _mask_key(f"{type(error).__name__}: {error}".encode(), secret).decode()
        kind = _Unreachable if isinstance(error, httpx.ConnectError) else BrokenReply
        raise kind(masked(text)) from None
    content = _mask_key(bytes(body), secret)
    # Without Content-Encoding: a small reply could unpack to gigabytes.
    headers = {name: response.headers.get(name, "") for name in ("location", "retry-after")}
    return httpx.Response(response.status_code, headers=headers, content=content)


def _mask_key(text: bytes, secret: SecretStr) -> bytes:
    return text.replace(secret.get_secret_value().encode(), b"***") if secret else text


def read_answer(body: bytes) -> Answer:
    """Parse the answer in a reply's body: the first choice of a chat completion.

    Raises:
        BrokenReply: there is none.
    """
    try:
        content = parse_json(body)
        choice, usage = content["choices"][0], content.get("usage") or {}
        message, ending = choice["message"], choice.get("finish_reason")
        text, refusal = (str(message.get(name) or "") for name in ("content", "refusal"))
        # Half of a surrogate pair, which JSON can spell, fits into no file.
        (text + refusal).encode()
        if ending == "content_filter":
            refusal = "finish_reason content_filter"
        counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        asked, answered = (n if isinstance(n, int) else 0 for n in counts)
        return Answer(text, ending == "length", refusal, asked, answered)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenReply(f"a reply without an answer ({type(error).__name__}: {error})") from error


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait by the `Retry-After` header, or 0 without the header or with a date."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return 0.0


def request_body(
    settings: EndpointSettings, messages: Iterable[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """JSON body of a chat completion request: model, messages and sampling parameters."""
    body = {
        "model": settings.model,
        "messages": list(messages),
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "seed": seed,
        **settings.more,
    }
    return {name: value for name, value in body.items() if value is not None}


def api_key(settings: EndpointSettings, key: str) -> SecretStr:
    """The API key in the configured environment variable, empty where none is configured.

    Raises:
        SettingsError: the environment lacks it, or holds what no header can; names the YAML key.
    """
    variable = settings.key_variable
    if variable is None:
        return SecretStr("")
    found = os.environ.get(variable, "").strip()
    if not (found and found.isascii() and found.isprintable()):
        raise SettingsError(
            f"{key}.key_variable: expected the API key in the environment variable {variable!r}, "
            + (
                "of printable ASCII characters, got others"
                if found
                else "which is not set; set it, or null where no key is needed"
            )
        )
    return SecretStr(found)
