"""Caption editor behind an OpenAI-compatible endpoint: `POST <url>/chat/completions`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import SecretStr

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    Opening,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors.llm import (
    Answer,
    answer_key,
    attempt_seed,
    check_answer,
    edit_messages,
    prompts_fingerprint,
)
from compo_pipeline.counterfactuals.editors.requests import (
    BrokenReply,
    Pause,
    Post,
    RefusedRequest,
    chat_completions,
    with_retries,
)
from compo_pipeline.counterfactuals.settings import EndpointSettings
from compo_pipeline.run import seeding
from compo_pipeline.run.engines import in_order
from compo_pipeline.storage.stores import KeyValueStore

# Requests that wait for their turn, for each that is under way.
_AHEAD = 4
# Replies after which no request at all can succeed, and the keys to correct.
_KEYS_TO_CORRECT = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}


# Gives the server's answer to a request's body; its key is that of the stored answer.
_Ask = Callable[[Mapping[str, Any], str], Answer]


class _Outcome(NamedTuple):
    """A caption's edit or failure, and whether the server was asked, not only the store."""

    result: EditedCaption | EditFailure
    asked: bool


class EndpointEditor:
    """Asks a language model on a server, and stores each answer before it is checked."""

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
        """Hash of all that changes the texts; the server's address and retries do not."""
        own = self._settings
        parameters = (own.model, own.temperature, own.max_tokens, own.seeded, dict(own.more))
        return short_fingerprint(
            self.name, parameters, own.attempts, own.checks, self._seed, prompts_fingerprint()
        )

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """The edit of each caption, in the requests' order.

        When the loop over them ends early, requests under way are finished and stored; the others
        are not sent.

        Raises:
            SettingsError: no request can succeed: a wrong key, address or model, or `give_up`
                captions in a row without an answer.
        """
        own, stop = self._settings, threading.Event()
        with (
            chat_completions(own.url, api_key(own, self._key), own.timeout) as post,
            ThreadPoolExecutor(own.in_flight, "endpoint") as pool,
        ):
            ask = partial(self._ask, post, stop)
            results = in_order(
                lambda request: pool.submit(self._edit_one, ask, request),
                Future.result,
                requests,
                own.in_flight * _AHEAD,
            )
            try:
                yield from self._results_until_down(results)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _results_until_down(
        self, results: Iterable[_Outcome | EditFailure]
    ) -> Iterator[EditedCaption | EditFailure]:
        """The edits in order, until `give_up` captions in a row got no answer.

        Failures wait until the server answers again, so those of a server that is down are never
        stored as answers.
        """
        held: list[EditedCaption | EditFailure] = []
        unanswered: list[EditFailure] = []
        answers = False
        for each in results:
            if isinstance(each, EditFailure):
                unanswered.append(each)
                held.append(each)
                if len(unanswered) >= self._settings.give_up:
                    raise self._down_error(unanswered)
                continue
            held.append(each.result)
            if each.asked:
                unanswered, answers = [], True
            if not unanswered:
                yield from held
                held = []
        # A refusal is final; what a server that is down did not answer is not.
        if not answers and not all(failure.final for failure in unanswered):
            raise self._down_error(unanswered)
        yield from held

    def _down_error(self, unanswered: Sequence[EditFailure]) -> SettingsError:
        """The error of a server that answered none of these captions."""
        return SettingsError(
            f"{self._key}.url: {self._settings.url} answered none of {len(unanswered)} captions in "
            f"a row; the last: {unanswered[-1].reason}. Check that the server runs and the "
            f"settings under {self._key}; answers so far are stored"
        )

    def _edit_one(self, ask: _Ask, request: EditRequest) -> _Outcome | EditFailure:
        """Ask until an answer passes the checks; a failure where no answer comes."""
        asked = False
        for attempt in range(self._settings.attempts):
            body = self._request_body(request, attempt)
            key = answer_key({"attempt": attempt, **body})
            answer = self._answers.get([key]).get(key)
            if answer is None:
                asked = True
                try:
                    new = ask(body, key)
                except BrokenReply as error:
                    return EditFailure(f"no answer: {error}", final=False)
                except RefusedRequest as error:
                    self._raise_if_never_accepted(error)
                    return EditFailure(f"refused: {error}")
                # The first answer to a request counts, whichever process got it.
                self._answers.put({key: new}, replace=False)
                answer = self._answers.get([key])[key]
            result = check_answer(request, answer, attempt, self._settings.checks)
            if isinstance(result, EditedCaption):
                break
        return _Outcome(result, asked)

    def _request_body(self, request: EditRequest, attempt: int) -> dict[str, Any]:
        """The JSON body of one attempt to edit a caption."""
        own = self._settings
        body = {
            "model": own.model,
            "messages": edit_messages(request.caption, request.role),
            "temperature": own.temperature,
            "max_tokens": own.max_tokens,
            **own.more,
        }
        return body | {"seed": attempt_seed(self._seed, request, attempt)} if own.seeded else body

    def _ask(self, post: Post, stop: threading.Event, body: Mapping[str, Any], key: str) -> Answer:
        """The server's answer, after retries; seed and key determine their waits."""
        send = partial(post, json.dumps(body).encode())
        rng = seeding.rng(self._seed, key)
        return with_retries(send, self._settings.retries, rng, stop, pause=self._pause)

    def _raise_if_never_accepted(self, error: RefusedRequest) -> None:
        """Raise where the server would refuse any other caption, too, by its status."""
        if wrong := _KEYS_TO_CORRECT.get(error.status):
            held = f" (now {self._settings.key_variable or 'null'})"
            raise SettingsError(
                f"{self._key}: {self._settings.url} refuses every request ({error}); "
                f"check {self._key}.{wrong}" + (held if wrong == "key_variable" else "")
            )


def api_key(settings: EndpointSettings, key: str) -> SecretStr:
    """The API key in the environment; empty where none is needed.

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


def open_editor(settings: EndpointSettings, key: str, opening: Opening) -> EndpointEditor:
    """The editor of these settings."""
    cache = opening.state / "endpoint.sqlite"
    return EndpointEditor(settings, key=key, seed=opening.seed, cache=cache)
