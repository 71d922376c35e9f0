"""Concurrent requests to an OpenAI-compatible endpoint: `POST <url>/chat/completions`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal

from compo_pipeline.core.compute import in_order
from compo_pipeline.core.settings import SettingsError, masked
from compo_pipeline.core.stores import KeyValueStore
from compo_pipeline.core.untrusted import parse_json
from compo_pipeline.generation.chat.answers import Answer, dated
from compo_pipeline.generation.chat.settings import EndpointSettings

RETRIES = 8
"""Times that the client sends a request again, within 40 seconds unless the server asks to wait."""
GIVE_UP = 10
"""Questions in a row without any answer, after which the run stops."""
_MAX_BYTES = 2**24  # bytes of a reply
_QUOTED = 300  # characters of a reply in an error
_AHEAD = 4  # questions read ahead for each connection
_LEAST = -9999.0  # log-probability that OpenAI sends of an impossible token
_PATH = "chat/completions"
# Headers that are sent. Others are for OpenAI's own server, or from the environment for another.
_SENT = frozenset(
    ("accept", "accept-encoding", "connection", "content-length", "content-type", "host")
)
# Replies after which no request at all can succeed, and the keys to correct.
_KEYS_TO_CORRECT = {
    **dict.fromkeys((301, 302, 303, 307, 308, 405, 501), "url"),
    **dict.fromkeys((401, 402, 407), "key_variable"),
    404: "url or model",
}

Item = TypeVar("Item")
Result = TypeVar("Result")
Body = Mapping[str, Any]
Ask = Callable[[str, Body], Answer]
"""The stored answer of a key, else the server's answer to a request's body."""


class NoAnswer(Exception):
    """Reason why a question has no answer.

    It is not stored, and another run asks again.
    """


class BrokenReply(httpx2.TransportError):
    """Error for an incomplete HTTP reply, or one without an answer.

    The client sends the request again.
    """


class Endpoint:
    """Client of a model on an OpenAI-compatible server.

    Answers are stored before they are used.

    Args:
        settings: settings of the endpoint.
        key: YAML key of the settings, for errors.
        cache: file of stored answers.
    """

    def __init__(self, settings: EndpointSettings, *, key: str, cache: Path) -> None:
        self.settings, self.key = settings, key
        self.answers = KeyValueStore(cache, Answer)
        self._numbers = itertools.count(1)  # of requests
        self.reached = False  # whether the server has ever replied
        self._stop: Exception | None = None  # why no further request is sent
        self._end_pauses: Callable[[], object] = lambda: None

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
        import openai  # half a second, which runs without an endpoint do not wait

        class Client(openai.AsyncOpenAI):
            """OpenAI's client, whose pauses before a retry end with the run."""

            async def _sleep_for_retry(self, **given: Any) -> None:
                async with anyio.create_task_group() as pause:

                    async def end() -> None:
                        await stopped.wait()
                        pause.cancel_scope.cancel()

                    pause.start_soon(end)
                    await super()._sleep_for_retry(**given)
                    pause.cancel_scope.cancel()

        own, unanswered, self._stop = self.settings, 0, None
        secret, stopped = api_key(own, self.key), anyio.Event()
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                Client(
                    api_key="set by the HTTP client",
                    base_url=httpx2.URL(own.url).copy_with(userinfo=b""),
                    http_client=_Client(self, secret),
                    max_retries=RETRIES,
                )
            ) as client,
            self.answers.many_writes(),
            ThreadPoolExecutor(own.connections, "endpoint") as pool,
        ):
            self._end_pauses = partial(portal.call, stopped.set)
            send = partial(client.post, _PATH, cast_to=httpx2.Response)
            ask = partial(self._ask, lambda body: portal.call(partial(send, body=body)))
            results = in_order(
                pool, partial(self._result, work, ask), items, own.connections * _AHEAD
            )
            try:
                for result in results:
                    unanswered = unanswered + 1 if isinstance(result, NoAnswer) else 0
                    if isinstance(result, NoAnswer) and unanswered == GIVE_UP:
                        raise SettingsError(
                            f"{self.key}.url: {own.url} answered none of {GIVE_UP} questions in a "
                            f"row; the last: {result}. Check that the server runs and the "
                            f"settings under {self.key}; answers so far are stored"
                        )
                    yield result
            finally:
                self._stop = self._stop or NoAnswer("the run ends")
                self._end_pauses()
                pool.shutdown(cancel_futures=True)

    def _result(
        self, work: Callable[[Ask, Item], Result], ask: Ask, item: Item
    ) -> Result | NoAnswer:
        """Result of the work function for an item, or the reason why it has no answer."""
        try:
            return work(ask, item)
        except NoAnswer as error:
            return error
        except SettingsError as error:
            self._stop = error  # before another thread sends what cannot succeed either
            self._end_pauses()
            raise

    def _ask(self, post: Callable[[Body], httpx2.Response], key: str, body: Body) -> Answer:
        """Answer to a request, stored or from the server.

        Raises:
            NoAnswer: the last try failed, too, or a retry would not change the reply.
            SettingsError: no request can succeed, or there may be no further one.
        """
        import openai

        if not (stored := self.answers.get([key])):
            try:
                answer = dated(read_answer(post(body).content))
            except openai.APIStatusError as error:
                raise self._refusal(error.response) from None
            except openai.APIConnectionError as error:
                raise NoAnswer(f"no answer: {error.__cause__}") from None
            if body.get("logprobs") and not (answer.first or answer.refusal):
                raise SettingsError(
                    f"{self.key}: {self.settings.url} sends no log-probabilities of tokens "
                    f"(top_logprobs), which are needed; choose another server, or another model "
                    f"than '{self.settings.model}'"
                )
            # The first answer to a request counts, whichever process got it.
            self.answers.put({key: answer}, replace=False)
            stored = self.answers.get([key])
        return stored[key]

    def before_request(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            NoAnswer: the run ends.
            SettingsError: another request cannot succeed either, or there may be no further one.
        """
        if self._stop:
            raise self._stop
        most = self.settings.max_requests
        if most is not None and next(self._numbers) > most:
            raise SettingsError(
                f"{self.key}.max_requests: {most:,} requests were sent, as many as a run may "
                "send; their answers are stored, and the same command asks the rest: run it again, "
                "or raise the number"
            )

    def _refusal(self, reply: httpx2.Response) -> Exception:
        """Error for a server's message in place of an answer."""
        own, key, status = self.settings, self.key, reply.status_code
        said = " ".join(reply.text.split())
        reason = f"{status}: {masked(said[:_QUOTED])}"
        if wrong := _KEYS_TO_CORRECT.get(status):
            held = f" (now {own.key_variable or 'null'})" if wrong == "key_variable" else ""
            return SettingsError(
                f"{key}: {own.url} refuses every request ({reason}); check {key}.{wrong}{held}"
            )
        return NoAnswer(f"the server answered {reason}")


class _Client(httpx2.AsyncClient):
    """HTTP client that sends the API key and reads complete replies, within time and size limits.

    The deadline holds from the connection to the last byte: a server that sends a byte each second
    never exceeds the time limits of single reads. Replies are not unpacked: a small one could
    unpack to gigabytes. Redirects are not followed: they would send the API key to another address.
    """

    def __init__(self, endpoint: Endpoint, secret: str) -> None:
        address = httpx2.URL(endpoint.settings.url)
        super().__init__(
            auth=(address.username, address.password) if address.userinfo else None,
            headers={"Accept-Encoding": "identity"},
            limits=httpx2.Limits(),
            timeout=None,
        )
        self._endpoint, self._secret = endpoint, secret

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and return the complete reply with `***` in place of the API key."""
        endpoint, body = self._endpoint, bytearray()
        endpoint.before_request()
        for name in {*request.headers} - _SENT:
            del request.headers[name]
        if self._secret:
            request.headers["Authorization"] = f"Bearer {self._secret}"
        try:
            with anyio.fail_after(endpoint.settings.timeout):
                async with aclosing(await super().send(request, stream=True)) as response:
                    async for piece in response.aiter_raw():
                        body += piece
                        if len(body) > _MAX_BYTES:
                            raise BrokenReply(f"a reply of more than {_MAX_BYTES} bytes")
        except TimeoutError:
            limit = f"{endpoint.settings.timeout:g} s"
            raise BrokenReply(f"no complete reply within {limit}") from None
        except httpx2.HTTPError as error:
            # Its text may quote what the server sent.
            text = masked(self._without_key(f"{type(error).__name__}: {error}"))
            if isinstance(error, httpx2.ConnectError) and not endpoint.reached:
                raise SettingsError(
                    f"{endpoint.key}.url: nothing answers at {endpoint.settings.url} ({text}); "
                    "start the server, or correct the address"
                ) from None
            raise BrokenReply(text) from None
        endpoint.reached, status = True, response.status_code
        said = body.decode(errors="replace")
        if response.is_success:
            read_answer(bytes(body))
        else:
            said = response.headers.get("location") or said
        # Without Content-Encoding: a small reply could unpack to gigabytes.
        headers = {"retry-after": response.headers.get("retry-after", "")}
        if status in _KEYS_TO_CORRECT:
            headers["x-should-retry"] = "false"
        return httpx2.Response(
            status, headers=headers, content=self._without_key(said), request=request
        )

    def _without_key(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


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
        if ending == "content_filter":
            refusal = "finish_reason content_filter"
        counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        asked, answered = (n if isinstance(n, int) else 0 for n in counts)
        chances = (choice.get("logprobs") or {}).get("content") or [{"top_logprobs": []}]
        # Some servers send the logarithm of 0 as -Infinity, which JSON does not have.
        first = tuple(
            (each["token"], max(_LEAST, float(each["logprob"])))
            for each in chances[0]["top_logprobs"]
        )
        # Half of a surrogate pair, which JSON can spell, fits into no file.
        "".join([text, refusal, *(token for token, _ in first)]).encode()
        return Answer(text, ending == "length", refusal, asked, answered, first=first)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenReply(f"a reply without an answer ({type(error).__name__}: {error})") from error


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


def api_key(settings: EndpointSettings, key: str) -> str:
    """The API key in the configured environment variable, empty where none is configured.

    Raises:
        SettingsError: the environment lacks it, or holds what no header can; names the YAML key.
    """
    variable = settings.key_variable
    if variable is None:
        return ""
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
    return found
