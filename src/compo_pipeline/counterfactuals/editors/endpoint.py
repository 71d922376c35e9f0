"""A writer behind an OpenAI-compatible endpoint: `POST <url>/chat/completions`."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from compo_pipeline import seeding
from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors import posting
from compo_pipeline.counterfactuals.editors.asking import judged, seed_of
from compo_pipeline.counterfactuals.editors.cache import Answer, Cache, key_of
from compo_pipeline.counterfactuals.editors.checks import CheckSettings
from compo_pipeline.counterfactuals.editors.prompts import fingerprint, messages

# Requests that wait for their turn, for each that is under way.
_AHEAD = 4
# Replies that say that no request at all will be answered, and the keys that mend it.
_HOPELESS = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}
_OWN = frozenset({"model", "messages", "temperature", "max_tokens", "seed", "stream", "n"})


@dataclass(frozen=True)
class EndpointSettings:
    """Where the model is and how it is asked.

    Attributes:
        url: up to and without /chat/completions, as "http://localhost:8000/v1".
        model: its name on the server.
        key_variable: the environment variable that holds the API key; null: none is sent.
        temperature: of sampling; 0 is greedy.
        max_tokens: most tokens of an answer.
        seeded: send a seed; for servers that refuse one: false.
        more: further fields of the request's body, as the server knows them.
        attempts: times that a caption is asked for, with another seed each, until an answer passes
            the checks.
        timeout: seconds for an answer.
        in_flight: requests under way at a time.
        give_up: captions in a row without any answer, after which the run stops.
        retries: of requests that got none.
        checks: what a text is held to.
    """

    url: str
    model: str
    key_variable: str | None = None
    temperature: float = 0.7
    max_tokens: int = 120
    seeded: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    attempts: int = 3
    timeout: float = 60.0
    in_flight: int = 8
    give_up: int = 10
    retries: posting.RetrySettings = field(default_factory=posting.RetrySettings)
    checks: CheckSettings = field(default_factory=CheckSettings)

    def __post_init__(self) -> None:
        """An address of the web, a name, numbers that make sense."""
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http://... or https://..., got {self.url!r}")
        if not self.model:
            raise ValueError("model: expected the model's name on the server, got none")
        if min(self.max_tokens, self.attempts, self.in_flight, self.give_up) < 1:
            raise ValueError("max_tokens, attempts, in_flight, give_up: expected 1 at least")
        if self.temperature < 0 or self.timeout <= 0:
            raise ValueError("temperature, timeout: expected no negative number, and some time")
        if taken := sorted(_OWN & self.more.keys()):
            raise ValueError(f"more: {taken} are set elsewhere, or not to be set")


class _Unanswered(NamedTuple):
    """No answer: the server is `down`, or it refuses this request."""

    failed: EditFailure
    down: bool


class _Outcome(NamedTuple):
    """What became of a request, and whether the server had to answer for it."""

    result: EditedCaption | EditFailure | _Unanswered
    asked: bool


class EndpointEditor:
    """Asks the server what its cache does not know; all answers are in the cache before they are
    judged.
    """

    name: ClassVar[str] = "endpoint"

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        key: str,
        seed: int,
        cache: Path,
        pause: posting.Pause = threading.Event.wait,
    ) -> None:
        """A writer that opens nothing yet.

        Args:
            settings: parsed.
            key: the YAML key that they stand under, for errors.
            seed: of the run.
            cache: file of answers.
            pause: waits between tries.
        """
        self._settings, self._key, self._seed = settings, key, seed
        self._cache, self._pause = Cache(cache), pause

    @property
    def settings_fingerprint(self) -> str:
        """Of all that decides the texts; where the server stands and how often it is asked do
        not.
        """
        own = self._settings
        parameters = (own.model, own.temperature, own.max_tokens, own.seeded, dict(own.more))
        return short_fingerprint(
            self.name, parameters, own.attempts, own.checks, self._seed, fingerprint()
        )

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """Answers in the requests' order.

        When the loop over them ends early, requests under way are waited for and kept; the others
        are not sent.

        Raises:
            SettingsError: the server answers nobody: a wrong key, address or model, or `give_up`
                captions in a row without an answer.
        """
        headers = self._headers()
        try:
            yield from self._settled(self._outcomes(requests, headers))
        finally:
            self._cache.close()

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

    def _outcomes(
        self, requests: Sequence[EditRequest], headers: Mapping[str, str]
    ) -> Iterator[_Outcome]:
        """Outcomes in order, a bounded number of requests ahead."""
        stop, waiting, rest = threading.Event(), deque[Future[_Outcome]](), iter(requests)
        with ThreadPoolExecutor(self._settings.in_flight, "endpoint") as pool:
            try:
                for request in islice(rest, self._settings.in_flight * _AHEAD):
                    waiting.append(pool.submit(self._outcome, request, headers, stop))
                while waiting:
                    yield waiting.popleft().result()
                    for request in islice(rest, 1):
                        waiting.append(pool.submit(self._outcome, request, headers, stop))
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _settled(self, outcomes: Iterator[_Outcome]) -> Iterator[EditedCaption | EditFailure]:
        """Results; those of a server that gives no answers are held back until it gives one.

        So a server that is down costs no caption its chance in a later run.
        """
        held: list[EditedCaption | EditFailure] = []
        silent: list[_Unanswered] = []
        answers = False
        for outcome in outcomes:
            if isinstance(outcome.result, _Unanswered):
                silent.append(outcome.result)
                held.append(outcome.result.failed)
                if len(silent) >= self._settings.give_up:
                    raise self._down(silent)
                continue
            held.append(outcome.result)
            if outcome.asked:
                silent, answers = [], True
            if not silent:
                yield from held
                held = []
        if not answers and any(one.down for one in silent):
            raise self._down(silent)
        yield from held

    def _down(self, silent: Sequence[_Unanswered]) -> SettingsError:
        return SettingsError(
            f"{self._key}.url: {self._settings.url} answered none of {len(silent)} captions in a "
            f"row; the last: {silent[-1].failed.reason}. See that the server runs and knows the "
            f"settings under {self._key}; what was answered is kept"
        )

    def _outcome(
        self, request: EditRequest, headers: Mapping[str, str], stop: threading.Event
    ) -> _Outcome:
        """Ask until an answer passes the checks."""
        asked = False
        for attempt in range(self._settings.attempts):
            body = self._body(request, attempt)
            key = key_of({"attempt": attempt, **body})
            answer = self._cache.get([key]).get(key)
            if answer is None:
                asked = True
                try:
                    answer = self._asked(body, key, headers, stop)
                except posting.Broken as error:
                    failed = EditFailure(request, f"no answer: {error}", final=False)
                    return _Outcome(_Unanswered(failed, True), asked)
                except posting.Rejected as error:
                    self._check_hope(error)
                    return _Outcome(
                        _Unanswered(EditFailure(request, f"refused: {error}"), False), asked
                    )
                answer = self._cache.put({key: answer}, {key: request.caption})[key]
            result = judged(request, answer, attempt, self._settings.checks)
            if isinstance(result, EditedCaption):
                break
        return _Outcome(result, asked)

    def _body(self, request: EditRequest, attempt: int) -> dict[str, Any]:
        own = self._settings
        body = {
            "model": own.model,
            "messages": messages(request.caption, request.role),
            "temperature": own.temperature,
            "max_tokens": own.max_tokens,
            **own.more,
        }
        return body | {"seed": seed_of(self._seed, request, attempt)} if own.seeded else body

    def _asked(
        self, body: Mapping[str, Any], key: str, headers: Mapping[str, str], stop: threading.Event
    ) -> Answer:
        own, secret = self._settings, headers.get("Authorization", "").removeprefix("Bearer ")
        url = own.url.rstrip("/") + "/chat/completions"
        sent = json.dumps(body).encode()
        try:
            return posting.persist(
                lambda: posting.post(url, sent, headers, own.timeout),
                _read,
                own.retries,
                seeding.rng(self._seed, key),
                stop,
                pause=self._pause,
            )
        except posting.Broken as error:
            raise posting.Broken(_without(secret, str(error))) from None
        except posting.Rejected as error:
            raise posting.Rejected(error.status, _without(secret, str(error))) from None

    def _check_hope(self, error: posting.Rejected) -> None:
        """Stop where no other caption would fare better."""
        if mends := _HOPELESS.get(error.status):
            raise SettingsError(
                f"{self._key}: {self._settings.url} refuses every request ({error}); "
                f"look at {self._key}.{mends}"
                + (f" (now {self._settings.key_variable})" if mends == "key_variable" else "")
            )


def _read(reply: posting.Reply) -> Answer:
    """The answer in a reply's first choice."""
    try:
        choice = json.loads(reply.body)["choices"][0]
        text = str(choice["message"]["content"] or "")
        text.encode()  # half of a surrogate pair, which JSON can spell, fits into no file
        return Answer(text, choice.get("finish_reason") == "length")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise posting.Broken(
            f"a reply without an answer ({type(error).__name__}: {error})"
        ) from error


def _without(secret: str, text: str) -> str:
    """A server's words, in case it repeats the key."""
    return text.replace(secret, "***") if secret else text
