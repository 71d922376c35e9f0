"""Caption editor behind an OpenAI-compatible endpoint: `POST <url>/chat/completions`."""

from __future__ import annotations

import email.utils
import json
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx

from compo_pipeline import seeding
from compo_pipeline.configuration import SettingsError, masked
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors.llm import (
    Answer,
    answer_key,
    attempt_seed,
    checked,
    messages,
    prompts_fingerprint,
)
from compo_pipeline.counterfactuals.settings import EndpointSettings, RetrySettings
from compo_pipeline.stores import KeyValueStore
from compo_pipeline.untrusted import parse_json

# Requests that wait for their turn, for each that is under way.
_AHEAD = 4
_MOST = 2**24  # bytes of a reply
_OK = 200
_SERVER_ERROR, _NOT_IMPLEMENTED = 500, 501
_RETRIED = frozenset({408, 409, 425, 429})  # and server errors
# Replies after which no request at all can succeed, and the keys to correct.
_HOPELESS = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}


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


class _Unanswered(NamedTuple):
    """No answer: the server is `down`, or it refuses this request."""

    failure: EditFailure
    down: bool


class _Result(NamedTuple):
    """Result of a request, and whether the server was asked for it."""

    answer: EditedCaption | EditFailure | _Unanswered
    asked: bool


class EndpointEditor:
    """Asks the server for answers that are not stored; each is stored before it is checked."""

    name: ClassVar[str] = "endpoint"
    concurrent: ClassVar[bool] = False

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        key: str,
        seed: int,
        cache: Path,
        pause: Pause = threading.Event.wait,
    ) -> None:
        """An editor that opens nothing yet.

        Args:
            settings: parsed.
            key: their YAML key, for errors.
            seed: of the run.
            cache: file of stored answers.
            pause: waits between retries.
        """
        self._settings, self._key, self._seed = settings, key, seed
        self._answers, self._pause = KeyValueStore(cache, Answer), pause

    @property
    def settings_fingerprint(self) -> str:
        """Of all that changes the texts; not of the server's address and retries."""
        own = self._settings
        parameters = (own.model, own.temperature, own.max_tokens, own.seeded, dict(own.more))
        return short_fingerprint(
            self.name, parameters, own.attempts, own.checks, self._seed, prompts_fingerprint()
        )

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """Answers in the requests' order.

        When the loop over them ends early, requests under way are finished and stored; the others
        are not sent.

        Raises:
            SettingsError: no request can succeed: a wrong key, address or model, or `give_up`
                captions in a row without an answer.
        """
        headers = self._headers()
        with httpx.Client(timeout=self._settings.timeout) as client:
            yield from self._settled(self._results(requests, client, headers))

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        variable = self._settings.key_variable
        if variable is not None:
            secret = os.environ.get(variable, "").strip()
            if not secret:
                raise SettingsError(
                    f"{self._key}.key_variable: expected the API key in the environment variable "
                    f"{variable!r}, which is not set; set it, or null where no key is needed"
                )
            headers["Authorization"] = f"Bearer {secret}"
        return headers

    def _results(
        self, requests: Sequence[EditRequest], client: httpx.Client, headers: Mapping[str, str]
    ) -> Iterator[_Result]:
        """Results in order, a bounded number of requests ahead."""
        stop, waiting, rest = threading.Event(), deque[Future[_Result]](), iter(requests)
        with ThreadPoolExecutor(self._settings.in_flight, "endpoint") as pool:
            try:
                for request in islice(rest, self._settings.in_flight * _AHEAD):
                    waiting.append(pool.submit(self._result, request, client, headers, stop))
                while waiting:
                    yield waiting.popleft().result()
                    for request in islice(rest, 1):
                        waiting.append(pool.submit(self._result, request, client, headers, stop))
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _settled(self, results: Iterator[_Result]) -> Iterator[EditedCaption | EditFailure]:
        """Answers; failures of an unreachable server are held back until it answers again.

        So the failures of a server that is down are never stored as answers.
        """
        held: list[EditedCaption | EditFailure] = []
        unanswered: list[_Unanswered] = []
        answers = False
        for answer, asked in results:
            if isinstance(answer, _Unanswered):
                unanswered.append(answer)
                held.append(answer.failure)
                if len(unanswered) >= self._settings.give_up:
                    raise self._down(unanswered)
                continue
            held.append(answer)
            if asked:
                unanswered, answers = [], True
            if not unanswered:
                yield from held
                held = []
        if not answers and any(one.down for one in unanswered):
            raise self._down(unanswered)
        yield from held

    def _down(self, unanswered: Sequence[_Unanswered]) -> SettingsError:
        return SettingsError(
            f"{self._key}.url: {self._settings.url} answered none of {len(unanswered)} captions in "
            f"a row; the last: {unanswered[-1].failure.reason}. Check that the server runs and the "
            f"settings under {self._key}; answers so far are stored"
        )

    def _result(
        self,
        request: EditRequest,
        client: httpx.Client,
        headers: Mapping[str, str],
        stop: threading.Event,
    ) -> _Result:
        """Ask until an answer passes the checks."""
        asked = False
        for attempt in range(self._settings.attempts):
            body = self._body(request, attempt)
            key = answer_key({"attempt": attempt, **body})
            answer = self._answers.get([key]).get(key)
            if answer is None:
                asked = True
                try:
                    new = self._asked(body, key, client, headers, stop)
                except BrokenReply as error:
                    failure = EditFailure(request, f"no answer: {error}", final=False)
                    return _Result(_Unanswered(failure, True), asked)
                except RefusedRequest as error:
                    self._check_hope(error)
                    failure = EditFailure(request, f"refused: {error}")
                    return _Result(_Unanswered(failure, False), asked)
                # The first answer to a request counts, whichever process got it.
                self._answers.put({key: new}, replace=False)
                answer = self._answers.get([key])[key]
            result = checked(request, answer, attempt, self._settings.checks)
            if isinstance(result, EditedCaption):
                break
        return _Result(result, asked)

    def _body(self, request: EditRequest, attempt: int) -> dict[str, Any]:
        own = self._settings
        body = {
            "model": own.model,
            "messages": messages(request.caption, request.role),
            "temperature": own.temperature,
            "max_tokens": own.max_tokens,
            **own.more,
        }
        return body | {"seed": attempt_seed(self._seed, request, attempt)} if own.seeded else body

    def _asked(
        self,
        body: Mapping[str, Any],
        key: str,
        client: httpx.Client,
        headers: Mapping[str, str],
        stop: threading.Event,
    ) -> Answer:
        own, secret = self._settings, headers.get("Authorization", "").removeprefix("Bearer ")
        url = own.url.rstrip("/") + "/chat/completions"
        content = json.dumps(body).encode()
        rng = seeding.rng(self._seed, key)
        try:
            return with_retries(
                lambda: post(client, url, content, headers, own.timeout),
                own.retries,
                rng,
                stop,
                pause=self._pause,
            )
        except BrokenReply as error:
            raise BrokenReply(_without(secret, str(error))) from None
        except RefusedRequest as error:
            raise RefusedRequest(error.status, _without(secret, str(error))) from None

    def _check_hope(self, error: RefusedRequest) -> None:
        """Stop where no other caption can succeed."""
        if wrong := _HOPELESS.get(error.status):
            raise SettingsError(
                f"{self._key}: {self._settings.url} refuses every request ({error}); "
                f"check {self._key}.{wrong}"
                + (f" (now {self._settings.key_variable})" if wrong == "key_variable" else "")
            )


def post(
    client: httpx.Client, url: str, content: bytes, headers: Mapping[str, str], timeout: float
) -> Reply:
    """Post a body and read the whole reply within `timeout` seconds after its start.

    Redirects are not followed: they would send the API key to another address.

    Raises:
        BrokenReply: no connection, no reply in time, or only a part of one.
    """
    body = b""
    try:
        with client.stream("POST", url, content=content, headers=dict(headers)) as response:
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
            if reply.status == _OK:
                return read_answer(reply)
            text = " ".join(reply.body.decode(errors="replace").split())[:300]
            reason = f"{reply.status}: {text}"
            server_error = reply.status >= _SERVER_ERROR and reply.status != _NOT_IMPLEMENTED
            if reply.status not in _RETRIED and not server_error:
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


def _without(secret: str, text: str) -> str:
    """A server's message without the API key, which it may repeat."""
    return masked(text.replace(secret, "***") if secret else text)
