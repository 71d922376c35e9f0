"""`compo-pipeline serve`: a registered version over HTTP, in MLflow's form and in OpenAI's.

Beside `mlflow models serve` it has limits of body, time and connections, and errors of one line
with an id that the log has too. No code of a version's folder runs: its weights, once verified,
answer through the model.py of this program.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from compo_pipeline.core.compute import choose_device, use_cores, use_one_core
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import load
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry import versions
from compo_pipeline.registry.model import Answered, ImageTextModel, RequestError
from compo_pipeline.registry.reference import read_words
from compo_pipeline.registry.settings import CHAMPION, RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.serving.challenger import Shadow, shadow_of
from compo_pipeline.serving.deployment import Deployment, Follower, load_version
from compo_pipeline.serving.exchange import Exchange, Observer, Served
from compo_pipeline.serving.request_log import RequestLog, token_lengths
from compo_pipeline.serving.settings import ServingSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


# Requests that are read, or wait for a forward pass, at once.
_THREADS = 16
_CONNECTIONS = 64  # at once; further ones get HTTP 503
_SWITCH = 0.0005  # seconds
_HEADER = 65_536  # bytes of a request's line and header

log = logging.getLogger(__name__)


def run(
    settings: ServingSettings,
    registration: RegistrationSettings,
    store: TrackingSettings,
    model: str | None,
    alias: str | None,
    version: int | None,
    host: str,
    port: int,
    shadow: str | None = None,
    share: float = 0.1,
) -> None:
    """Serve a registered version, or an exported model, over HTTP until interrupted.

    Args:
        settings: device and limits of the server.
        registration: name and public key of the versions.
        store: URI of the MLflow store. A relative path is below the working directory.
        model: `models:/<name>@<alias>`, `models:/<name>/<version>` or the folder of an exported
            model; None is the model of the setting `registration.name`.
        alias: alias of the version. None is the champion.
        version: number of the version, in place of an alias.
        host: address to listen on.
        port: port to listen on.
        shadow: alias or number of a challenger that answers in shadow.
        share: share of the requests that it is asked.

    Raises:
        SettingsError: there is no such version.
        VersionError: its files are not those that were registered.
    """
    import uvicorn

    device = str(choose_device(settings.device, key="serving.device"))
    use_cores()
    threads = torch.get_num_threads()
    use_one_core()
    # A forward pass hands the interpreter over at each of its operations; by Python's default it
    # would wait up to 5 ms each time until a thread that reads a request gives it back.
    sys.setswitchinterval(_SWITCH)
    # Of the whole process, as the cores: an image in a CSV is longer than Python's default.
    csv.field_size_limit(settings.body)
    if model is not None and Path(model).is_dir():
        alias, loaded = None, load(Path(model), device)
        try:
            words = read_words(Path(model))
        except ValueError as error:
            raise SettingsError(f"--model: {error}") from None
        served = Served(Path(model).resolve().name, None, loaded.fingerprint)
    else:
        tracking.connect(store, Path.cwd())
        name, alias, version = (
            (registration.name, alias or CHAMPION, version)
            if model is None
            else versions.parse_uri(model, "--model")
        )
        found = versions.find(name, alias or "", version, None if model is None else "--model")
        loaded, served, words = load_version(found, registration.signing, device)
    deployment = Deployment(loaded, served, settings, words=words, threads=threads)
    observers: list[RequestLog | Shadow] = []
    followers: list[Follower | None] = []
    tried = None
    if version is None and alias and settings.reload_seconds:
        signing = registration.signing
        followers.append(Follower(deployment, signing, served.model, alias, device))
    if settings.log.folder is not None:
        observers.append(RequestLog(settings.log, settings.log.folder, deployment.metrics.dropped))
    if shadow is not None:
        tried, follower = shadow_of(shadow, share, deployment, registration, device)
        observers.append(tried)
        followers.append(follower)
    at_end = [observer.close for observer in observers]
    application = build(deployment, observers, [*filter(None, followers)], tried, at_end)
    label = served.model if served.version is None else f"{served.model} version {served.version}"
    log.info("%s answers at http://%s:%d/invocations (Ctrl+C ends it)", label, host, port)
    uvicorn.run(application, host=host, port=port, **server_options(settings))


def server_options(settings: ServingSettings) -> dict[str, Any]:
    """Options of the HTTP server Uvicorn, with its parser h11, which limits the header's size."""
    return {
        "http": "h11",
        "h11_max_incomplete_event_size": _HEADER,
        "limit_concurrency": _CONNECTIONS,
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }


def build(
    deployment: Deployment,
    observers: Sequence[Observer] = (),
    followers: Sequence[Follower] = (),
    shadow: Shadow | None = None,
    at_end: Sequence[Callable[[], object]] = (),
) -> Starlette:
    """The web application: `/invocations`, `/v1/embeddings`, and what tells of the server.

    Args:
        deployment: the model that answers, limits, metrics.
        observers: functions that are called, in a thread, with every exchange once its response is
            sent. What one raises is logged.
        followers: look every `serving.reload_seconds` for another version, one after the other.
        shadow: observer that answers `/shadow`.
        at_end: are called, in a thread, when the server ends and all requests are answered; after
            SIGTERM nothing else is.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def follow() -> None:
        while True:
            await asyncio.sleep(deployment.settings.reload_seconds)
            for follower in followers:
                await asyncio.to_thread(follower.look)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(follow()) if followers else None
        yield
        if following is not None:
            following.cancel()
        for end in at_end:
            await asyncio.to_thread(end)

    def metrics(_: Request) -> Response:
        text = generate_latest(deployment.metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def in_shadow(_: Request) -> Response:
        return JSONResponse({"challenger": None} if shadow is None else shadow.summary())

    pool = ThreadPoolExecutor(_THREADS, initializer=use_one_core)
    mlflow = Endpoint(deployment, observers, pool, _read_mlflow, _mlflow_error)
    openai = Endpoint(deployment, observers, pool, _read_openai, _openai_error)
    return Starlette(
        routes=[
            Route("/invocations", mlflow.respond, methods=["POST"]),
            Route("/v1/embeddings", openai.respond, methods=["POST"]),
            Route("/ping", Response("\n", media_type=JSON)),
            Route("/health", JSONResponse({"status": "ok"})),
            Route("/version", lambda _: JSONResponse(asdict(deployment.current.served))),
            Route("/metrics", metrics),
            Route("/shadow", in_shadow),
        ],
        lifespan=lifespan,
    )


# The table and params that the model is asked, and what writes its answer as JSON.
_Asked: TypeAlias = tuple[pd.DataFrame, dict[str, Any] | None, Callable[[Answered], str]]
_Read: TypeAlias = Callable[[bytes, str, Exchange], _Asked]


class Endpoint:
    """A route's handler: each request is read, answered in a thread, and handed on."""

    def __init__(
        self,
        deployment: Deployment,
        observers: Sequence[Observer],
        pool: ThreadPoolExecutor,
        read: _Read,
        error: Callable[[Refusal, str], dict[str, Any]],
    ) -> None:
        """Handle requests of one form.

        Args:
            deployment: the model that answers, limits, metrics.
            observers: are called with every exchange.
            pool: threads that answer.
            read: parses a body of a content type to the table and params that the model is asked,
                and a function that writes the answer as JSON.
            error: the JSON of a refusal and the request's id.
        """
        self._deployment, self._observers, self._pool = deployment, observers, pool
        self._settings, self._metrics = deployment.settings, deployment.metrics
        self._read, self._error = read, error

    async def respond(self, request: Request) -> Response:
        """Answer a request or say why not, then count and log it and call the observers."""
        from starlette.background import BackgroundTask
        from starlette.responses import JSONResponse, Response

        start = time.monotonic()
        exchange = Exchange(uuid4().hex[:12], self._deployment.current)
        try:
            with self._metrics.running.track_inprogress():
                response = Response(await self._answer(request, exchange), media_type=JSON)
        except Refusal as refusal:
            exchange.refusal = reason = str(refusal)
            response = JSONResponse(self._error(refusal, exchange.id), refusal.status)
            if refusal.status == 504:  # perhaps not read to its end
                response.headers["connection"] = "close"
        exchange.status, exchange.seconds = response.status_code, time.monotonic() - start
        exchange.time = datetime.now(UTC)
        reason = exchange.refusal or f"{exchange.seconds:.3f} s"
        log.info("request %s: %d, %s", exchange.id, exchange.status, reason)
        response.headers["x-request-id"] = exchange.id
        if exchange.served.version is not None:
            response.headers["x-model-version"] = str(exchange.served.version)
        self._metrics.observe(exchange)
        if self._observers:
            response.background = BackgroundTask(_call_observers, self._observers, exchange)
        return response

    async def _answer(self, request: Request, exchange: Exchange) -> str:
        """Read a request and answer it in a thread, within `limits.seconds`.

        One that has not begun by then is taken from the queue; one that is computed ends at its
        next image or batch.
        """
        seconds, loop = self._settings.limits.seconds, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                body = await _read_body(request, self._settings.body)
                kind = request.headers.get("content-type", "")
                read = self._read
                return await loop.run_in_executor(self._pool, _answer, exchange, read, body, kind)
        except TimeoutError:
            reason = f"no answer within {seconds} seconds: split the table, or try later"
            raise Refusal(504, reason, "DEADLINE_EXCEEDED") from None


async def _read_body(request: Request, limit: int) -> bytes:
    """Read a request's body.

    A body over the limit is read to its end and refused.

    A client that still writes when its connection is closed does not see the answer.
    """
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async for chunk in request.stream():
            if len(body) <= limit:
                body += chunk
    except ClientDisconnect:
        raise Refusal(400, "the client left") from None
    if len(body) > limit:
        raise Refusal(413, f"the body has more than {limit} bytes: split the table")
    return bytes(body)


def _call_observers(observers: Sequence[Observer], exchange: Exchange) -> None:
    """Call each observer with an exchange, and log the errors that they raise."""
    for observer in observers:
        try:
            observer(exchange)
        except Exception:
            log.exception("request %s: an observer failed", exchange.id)


def _answer(
    exchange: Exchange,
    read: _Read,
    body: bytes,
    content_type: str,
) -> str:
    """Parse a request's body and compute the answer, as JSON.

    Raises:
        Refusal: for whatever keeps the request from an answer.
    """
    table, params, write = read(body, content_type, exchange)
    exchange.table, exchange.params = table, params
    try:
        exchange.answered = exchange.deployed.model.answer(table, params)
    except RequestError as error:
        status = ERROR_CODE_TO_HTTP_STATUS[error.error_code]
        # The variable is that of MLflow's server.
        reason = error.args[0].replace("COMPO_CLIP_IMAGE_ROOT", "serving.image_root")
        raise Refusal(status, reason, error.error_code) from None
    return write(exchange.answered)


_COLUMNS = ("image", "text")
# Not MLflow's third, Parquet: a small file can unpack to more than the memory.
JSON, CSV = "application/json", "text/csv"
_REASON = 500
_encoded = json.JSONEncoder().encode


_Rows: TypeAlias = list[dict[str, Any]]


class _Split(BaseModel):
    """A table as column names and rows of cells."""

    columns: list[Any]
    data: list[list[Any]]


class RequestBody(BaseModel):
    """A request in one of MLflow's JSON forms."""

    model_config = ConfigDict(extra="forbid")

    dataframe_records: _Rows | None = None
    dataframe_split: _Split | None = None
    inputs: _Rows | dict[str, list[Any]] | None = Field(None, union_mode="left_to_right")
    instances: _Rows | None = None
    params: dict[str, Any] | None = None

    def table(self) -> tuple[list[Any], Iterable[Sequence[Any]], dict[str, Any] | None]:
        """Column names, rows of cells, and params.

        Raises:
            ValueError: there is not exactly one table, or its columns have different lengths.
        """
        tables = self.dataframe_records, self.dataframe_split, self.inputs, self.instances
        given = [table for table in tables if table is not None]
        if len(given) != 1:
            raise ValueError(
                "expected one of dataframe_records, dataframe_split, inputs, instances"
            )
        (table,) = given
        if isinstance(table, _Split):
            return table.columns, table.data, self.params
        if isinstance(table, dict):
            known = {name: table[name] for name in _COLUMNS if name in table}
            return list(known), zip(*known.values(), strict=True), self.params
        present = [name for name in _COLUMNS if any(name in row for row in table)]
        return present, ([row.get(name) for name in present] for row in table), self.params


class Refusal(Exception):
    """Error for a request that gets no answer: HTTP status, reason, and MLflow's error code."""

    def __init__(self, status: int, reason: str, code: str = "BAD_REQUEST") -> None:
        """Create the error.

        The reason may quote the request, so only one line of it is kept.
        """
        line = " ".join(reason[: 2 * _REASON].split())
        super().__init__("".join(filter(str.isprintable, line))[:_REASON])
        self.status, self.code = status, code


def _mlflow_error(refusal: Refusal, request: str) -> dict[str, Any]:
    """A refusal as MLflow's server writes it."""
    return {"error_code": refusal.code, "message": str(refusal), "request_id": request}


def _read_mlflow(body: bytes, content_type: str, exchange: Exchange) -> _Asked:
    """Read a request in MLflow's form."""
    table, params = read_table(body, content_type, exchange.deployed.model.limits.rows)
    return table, params, lambda answered: write_answer(answered.output)


_Body = TypeVar("_Body", bound=BaseModel)


def _validated(kind: type[_Body], body: bytes) -> _Body:
    """Parse a body of JSON.

    Raises:
        Refusal: names the first key that is wrong.
    """
    try:
        return kind.model_validate(json.loads(body))
    except RecursionError:
        raise Refusal(400, "the JSON is nested too deeply") from None
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, fault["loc"])) or "the body"
        raise Refusal(400, f"{key}: {fault['msg']}") from None
    except ValueError as error:
        raise Refusal(400, f"the body is not {JSON}: {error}") from None


def read_table(
    body: bytes, content_type: str, most: int
) -> tuple[pd.DataFrame, dict[str, Any] | None]:
    """Parse a request's body to a table of the columns image and text, and its params.

    MLflow's own reading takes minutes, and gigabytes, for a megabyte of column names.

    Args:
        body: body of the request.
        content_type: content type in the request's header.
        most: rows that it may have.

    Raises:
        Refusal: it is no such table.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON:
            columns, lines, params = _validated(RequestBody, body).table()
        elif kind == CSV:
            lines = filter(None, csv.reader(io.StringIO(body.decode("utf-8-sig"), newline="")))
            columns, params = list(next(lines, [])), None
        else:
            reason = f"the content type is '{kind}', expected {JSON} or {CSV}"
            raise Refusal(415, f"{reason}, with the bytes of an image as base64")
        rows = list(islice(lines, most + 1))
    except (ValueError, csv.Error) as error:
        raise Refusal(400, f"the body is not {kind}: {error}") from None
    if len(rows) > most:
        reason = f"the table has more rows than are answered at once, at most {most}: split it"
        raise Refusal(400, reason)
    for number, row in enumerate(rows):
        if len(row) > len(columns):
            reason = f"row {number} has {len(row)} cells in {len(columns)} columns"
            raise Refusal(400, f"{reason}: a comma within a cell of CSV needs quotes around it")
    places = {name: columns.index(name) for name in _COLUMNS if name in columns}
    cells = np.full((len(rows), len(places)), None, dtype=object)
    for number, row in enumerate(rows):
        for k, place in enumerate(places.values()):
            if place < len(row):
                cells[number, k] = row[place]
    # Of objects, an array and names cost a fifth of the time that a dict does.
    return pd.DataFrame(cells, columns=pd.Index([*places], dtype=object), dtype=object), params


def write_answer(output: pd.DataFrame) -> str:
    """Serialise an answer to JSON, equal to MLflow's `predictions_to_json` but faster."""
    names = output.columns.tolist()
    rows = zip(*(output[name].tolist() for name in names), strict=True)
    # Row by row: other threads go on between two of them.
    records = (_encoded(dict(zip(names, row, strict=True))) for row in rows)
    return f'{{"predictions": [{", ".join(records)}]}}'


_DATA_URI = re.compile(r"data:[^,\s]*;base64,", re.IGNORECASE)


class EmbeddingsBody(BaseModel):
    """A request for embeddings in OpenAI's form."""

    model_config = ConfigDict(extra="forbid")

    input: Annotated[
        list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
    ] = Field(min_length=1)
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


def _openai_error(refusal: Refusal, request: str) -> dict[str, Any]:
    """A refusal as OpenAI's server writes it."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    code = "model_not_found" if refusal.status == 404 else None
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": code}}


def _read_openai(body: bytes, content_type: str, exchange: Exchange) -> _Asked:
    """Read a request for embeddings in OpenAI's form: texts, or images as data URIs.

    Raises:
        Refusal: it is no such request, or names another model.
    """
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise Refusal(415, f"the content type is '{content_type}', expected {JSON}")
    asked, served = _validated(EmbeddingsBody, body), exchange.served
    if asked.model != served.model:
        raise Refusal(404, f"model: no '{asked.model}', expected '{served.model}'")
    images = [_DATA_URI.match(item) is not None for item in asked.input]
    if len({*images}) > 1:
        place = images.index(not images[0])
        found = f"input.{place} is {'an image' if images[place] else 'a text'}, input.0 is not"
        raise Refusal(400, f"{found}: send images and texts in separate requests")
    table = pd.DataFrame({"image" if images[0] else "text": asked.input}, dtype=object)
    return table, {"task": "embed"}, partial(_write_embeddings, asked, exchange.deployed.model)


def _write_embeddings(asked: EmbeddingsBody, model: ImageTextModel, answered: Answered) -> str:
    """Serialise embeddings to JSON in OpenAI's form; an image counts as no token."""
    vectors = answered.images if answered.texts is None else answered.texts
    assert vectors is not None
    tokens = 0 if answered.texts is None else sum(token_lengths(model, asked.input))
    rows: list[Any] = vectors.tolist()
    if asked.encoding_format == "base64":
        rows = [base64.b64encode(row).decode() for row in vectors.astype("<f4")]
    data = [{"object": "embedding", "index": k, "embedding": row} for k, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _encoded({"object": "list", "data": data, "model": asked.model, "usage": usage})
