"""Many questions to an OpenAI-compatible endpoint at once: `POST <url>/chat/completions`."""

from __future__ import annotations

import ipaddress
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from httpx import codes
from pydantic import SecretStr

from compo_pipeline.chat.answers import Answer
from compo_pipeline.chat.requests import (
    BrokenReply,
    Interrupted,
    Pace,
    Pause,
    Post,
    RefusedRequest,
    Retries,
    Unreachable,
    chat_completions,
    list_models,
    with_retries,
)
from compo_pipeline.chat.settings import EndpointSettings
from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.run import seeding
from compo_pipeline.run.engines import in_order
from compo_pipeline.storage.stores import KeyValueStore

RETRIES = Retries()
GIVE_UP = 10
"""Questions in a row without any answer, after which the run stops."""
# Questions that wait for their turn, for each that is under way.
_AHEAD = 4
_CHECKED = 10.0  # seconds within which a server answers what models it has
# Replies after which no request at all can succeed, and the keys to correct.
_KEYS_TO_CORRECT = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoAnswer(NamedTuple):
    """Reason why a question has no answer, and whether that is final.

    `final` is false where the same question may be answered later: no server did.
    """

    reason: str
    final: bool = True


Body = Callable[[], Mapping[str, Any]]
Ask = Callable[[str, Body], Answer]
"""The stored answer of a key, else the server's answer to the body that the function makes."""


@dataclass(frozen=True, slots=True)
class _WorkResult(Generic[Result]):
    """Result of the work function for an item, and whether the server was used for it."""

    result: Result
    asked: bool


@dataclass(slots=True)
class _Session:
    """State shared by a call's worker threads: connections, stop event, error that stopped them."""

    post: Post
    slots: threading.Semaphore
    stop: threading.Event
    failure: SettingsError | None = None


class Endpoint:
    """Client of a model on an OpenAI-compatible server; answers are stored before they are used."""

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        key: str,
        seed: int,
        cache: Path,
        pause: Pause = threading.Event.wait,
    ) -> None:
        """An endpoint of which nothing is opened yet.

        Args:
            settings: parsed.
            key: their YAML key, for errors.
            seed: of the run; it draws the waits.
            cache: file of stored answers.
            pause: waits between retries.
        """
        self._settings, self._key, self._seed = settings, key, seed
        self._answers, self._pause = KeyValueStore(cache, Answer), pause
        self._pace = Pace(key, settings.max_requests)

    @property
    def host(self) -> str:
        """Host name of the server, with the port if the URL names one."""
        return urlsplit(self._settings.url).netloc.rpartition("@")[2]

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return _is_local(urlsplit(self._settings.url).hostname or "")

    def check(self) -> None:
        """Check that a server listens at the URL, and does not redirect to another host.

        Raises:
            SettingsError: the API key is missing, nothing listens at the address, or the server
                redirects to another host; names the YAML key.
        """
        own = self._settings
        secret = api_key(own, self._key)
        try:
            reply = list_models(own.url, secret, min(own.timeout, _CHECKED))
        except Unreachable as error:
            raise SettingsError(
                f"{self._key}.url: nothing answers at {own.url} ({error}); start the server, or "
                "correct the address"
            ) from None
        except BrokenReply:
            return  # slow, or without such a page
        leads_to = urlsplit(reply.headers.get("location", ""))
        if codes.is_redirect(reply.status) and leads_to.hostname not in (
            None,
            urlsplit(own.url).hostname,
        ):
            raise SettingsError(
                f"{self._key}.url: {own.url} redirects to another host, {leads_to.hostname}, which "
                "is refused; name the address that is meant"
            )

    def each(
        self,
        work: Callable[[Ask, Item], Result],
        items: Iterable[Item],
        *,
        spare: int = 0,
        checked: bool = False,
    ) -> Iterator[Result | NoAnswer]:
        """Yield the result of the work function for each item, in order; several run at once.

        When the loop over them ends early, requests under way are finished and stored; the others
        are not sent.

        Args:
            work: asks what an item needs, in one of several threads.
            items: read as far ahead as they can be asked.
            spare: threads that make bodies while all connections are in use; for large ones.
            checked: whether `check` has found the server: then fewer than `GIVE_UP` items, all
                without an answer, are no sign that it is down.

        Raises:
            SettingsError: no request can succeed: a wrong key, address or model, or `GIVE_UP`
                items in a row without an answer; or as many requests were sent as may be.
        """
        own = self._settings
        threads = own.connections + spare
        with (
            chat_completions(own.url, api_key(own, self._key), own.timeout) as post,
            self._answers.many_writes(),
            ThreadPoolExecutor(threads, "endpoint") as pool,
        ):
            session = _Session(post, threading.Semaphore(own.connections), threading.Event())
            ask = partial(self._ask, session)
            results = in_order(
                lambda item: pool.submit(self._run_work, ask, work, item),
                Future.result,
                items,
                threads * _AHEAD,
            )
            try:
                yield from self._until_down(results, checked=checked)
            finally:
                session.stop.set()
                pool.shutdown(cancel_futures=True)

    def _until_down(
        self, results: Iterable[_WorkResult[Result] | NoAnswer], *, checked: bool
    ) -> Iterator[Result | NoAnswer]:
        """Yield results in order; raise an error after `GIVE_UP` items in a row without an answer.

        Failures wait until the server answers again, so those of a server that is down are never
        stored as answers.
        """
        held: list[Result | NoAnswer] = []
        unanswered: list[NoAnswer] = []
        answers = checked
        for each in results:
            if isinstance(each, NoAnswer):
                unanswered.append(each)
                held.append(each)
                if len(unanswered) >= GIVE_UP:
                    raise self._unanswered_error(unanswered)
                continue
            held.append(each.result)
            if each.asked:
                unanswered, answers = [], True
            if not unanswered:
                yield from held
                held = []
        # A refusal is final; what a server that is down did not answer is not.
        if not answers and not all(failure.final for failure in unanswered):
            raise self._unanswered_error(unanswered)
        yield from held

    def _unanswered_error(self, unanswered: list[NoAnswer]) -> SettingsError:
        """The error to raise where the server answers none of several questions in a row."""
        return SettingsError(
            f"{self._key}.url: {self._settings.url} answered none of {len(unanswered)} questions "
            f"in a row; the last: {unanswered[-1].reason}. Check that the server runs and the "
            f"settings under {self._key}; answers so far are stored"
        )

    def _run_work(
        self,
        ask: Callable[[str, Body], tuple[Answer, bool]],
        work: Callable[[Ask, Item], Result],
        item: Item,
    ) -> _WorkResult[Result] | NoAnswer:
        """Call the work function on an item; return its result, or `NoAnswer` after an error."""
        asked = False

        def noted(key: str, body: Body) -> Answer:
            nonlocal asked
            answer, new = ask(key, body)
            asked |= new
            return answer

        try:
            return _WorkResult(work(noted, item), asked)
        except BrokenReply as error:
            return NoAnswer(f"no answer: {error}", final=False)
        except RefusedRequest as error:
            return NoAnswer(f"refused: {error}")

    def _ask(self, session: _Session, key: str, body: Body) -> tuple[Answer, bool]:
        """Answer to a request, stored or from the server, and whether the server was used."""
        stored = self._answers.get([key])
        if key in stored:
            return stored[key], False
        send = partial(session.post, json.dumps(body()).encode())
        rng = seeding.rng(self._seed, key)
        with session.slots:
            try:
                stop, pace = session.stop, self._pace
                new = with_retries(send, RETRIES, rng, stop, pace, pause=self._pause)
            except (RefusedRequest, Interrupted) as error:
                # Before another thread sends what cannot succeed either.
                session.failure = session.failure or self._fatal_error(error)
                if session.failure is None:
                    raise
                session.stop.set()
                raise session.failure from None
            # The first answer to a request counts, whichever process got it.
            self._answers.put({key: dated(new)}, replace=False)
        return self._answers.get([key])[key], True

    def _fatal_error(self, error: RefusedRequest | Interrupted) -> SettingsError | None:
        """Settings error if the HTTP status means that every request will be refused, else None."""
        wrong = isinstance(error, RefusedRequest) and _KEYS_TO_CORRECT.get(error.status)
        if not wrong:
            return None
        held = f" (now {self._settings.key_variable or 'null'})"
        return SettingsError(
            f"{self._key}: {self._settings.url} refuses every request ({error}); "
            f"check {self._key}.{wrong}" + (held if wrong == "key_variable" else "")
        )


def request_body(
    settings: EndpointSettings, messages: Iterable[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """JSON body of a chat completion request: model, messages and sampling parameters."""
    body = {
        "model": settings.model,
        "messages": list(messages),
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        **settings.more,
    }
    return body | {"seed": seed} if settings.seeded else body


def api_key(settings: EndpointSettings, key: str) -> SecretStr:
    """The API key in the configured environment variable; empty where none is configured.

    Raises:
        SettingsError: the environment lacks it, or holds what no header can; names the YAML key.
    """
    variable = settings.key_variable
    if variable is None:
        return SecretStr("")
    found = SecretStr(os.environ.get(variable, "").strip())
    if not found:
        raise SettingsError(
            f"{key}.key_variable: expected the API key in the environment variable "
            f"{variable!r}, which is not set; set it, or null where no key is needed"
        )
    if not (found.get_secret_value().isascii() and found.get_secret_value().isprintable()):
        raise SettingsError(
            f"{key}.key_variable: expected a key of printable ASCII characters in the "
            f"environment variable {variable!r}, got others"
        )
    return found


def dated(answer: Answer) -> Answer:
    """Copy of an answer with the current time in UTC as its date."""
    return answer._replace(date=datetime.now(UTC).isoformat(timespec="seconds"))


def _is_local(host: str) -> bool:
    """Whether a host name or IP address is that of the local machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
