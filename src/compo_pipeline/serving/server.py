"""`compo-pipeline serve`: a registered version over HTTP, with MLflow's requests and answers.

Beside `mlflow models serve` it has limits of body, time and connections, and errors of one line
with an id that the log has too. No code of a version's folder runs: its weights, once verified,
answer through the model.py of this program.
"""

from __future__ import annotations

import asyncio
import csv
import errno
import io
import json
import logging
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from compo_pipeline import __version__
from compo_pipeline.configuration.settings import PlainError
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.run.compute import choose_device, use_cores
from compo_pipeline.serving.settings import ServingSettings
from compo_pipeline.tracking import runs as tracking
from compo_pipeline.tracking.settings import TrackingSettings
from compo_pipeline.versions import versions
from compo_pipeline.versions.settings import CHAMPION, RegistrationSettings
from compo_pipeline.versions.verification import verified

if TYPE_CHECKING:
    import pandas as pd
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from compo_pipeline.versions.model import Answered, ImageTextModel, RequestLimits

_COLUMNS = ("image", "text")
# Keys of a table in JSON, and what they hold.
_RECORDS = "expected a list of rows, each an object such as {'image': ..., 'text': ...}"
_FORMS = {
    "dataframe_records": _RECORDS,
    "dataframe_split": "expected {'columns': [...], 'data': [[...], ...]}, a list for each row",
    "inputs": f"{_RECORDS}, or an object of columns, each a list of as many cells",
    "instances": _RECORDS,
}
# Not MLflow's third, Parquet: a small file can unpack to more than the memory.
_JSON, _CSV = "application/json", "text/csv"
# Requests computed at once; torch uses all cores for each.
_THREADS = 4
_REASON = 500
_HEADER = 65_536  # bytes of a request's line and header
_LEFT = "the client left"
_DISCARDING = 30  # seconds in which a body over the limit is read to its end

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What `/version` tells: the registered model and version, and a hash of its weights."""

    model: str
    version: int | None
    fingerprint: str
    program: str = __version__


@dataclass(frozen=True)
class Deployed:
    """A model and what `/version` tells of it."""

    model: ImageTextModel
    served: Served


class Deployment:
    """The model that answers. A request reads `current` once, and ends on what it has read."""

    def __init__(self, loaded: LoadedModel, served: Served, limits: RequestLimits) -> None:
        """Answer with a loaded model; the limits hold for all that follow it."""
        self.limits = limits
        self.swap(loaded, served)

    def swap(self, loaded: LoadedModel, served: Served) -> None:
        """Answer later requests with another model."""
        from compo_pipeline.versions.model import ImageTextModel

        model = ImageTextModel()
        model.use(loaded.model, loaded.preprocess, loaded.tokenize, self.limits)
        self.current = Deployed(model, served)


@dataclass
class Exchange:
    """A request to `/invocations` and its answer.

    Attributes:
        id: of the request, as in the log.
        served: which model answered.
        status: of the response.
        seconds: from the request's header to the response.
        table: the columns image and text; None if the body cannot be read as a table.
        params: of the request.
        answered: the answer; None if there is none.
    """

    id: str
    served: Served
    status: int = 200
    seconds: float = 0.0
    table: pd.DataFrame | None = None
    params: dict[str, Any] | None = None
    answered: Answered | None = None


Observer: TypeAlias = Callable[[Exchange], None]


class Refusal(Exception):
    """A request that gets no answer: HTTP status, reason, MLflow's name of the error.

    Of a request that was not read to its end (`unread`), the connection is closed.
    """

    def __init__(
        self, status: int, reason: str, code: str = "BAD_REQUEST", *, unread: bool = False
    ) -> None:
        """Create the error; of the reason, which may quote the request, one line is kept."""
        line = " ".join(reason[: 2 * _REASON].split())
        super().__init__("".join(filter(str.isprintable, line))[:_REASON])
        self.status, self.code, self.unread = status, code, unread


def run(
    settings: ServingSettings,
    registration: RegistrationSettings,
    store: TrackingSettings,
    model: str | None,
    alias: str | None,
    version: int | None,
    host: str,
    port: int,
) -> None:
    """Serve a version until the process is interrupted.

    Args:
        settings: device and limits of the server.
        registration: name and public key of the versions.
        store: MLflow's; a relative path is below the working directory.
        model: `models:/<name>@<alias>`, `models:/<name>/<version>` or the folder of an exported
            model; None is the model of the setting `registration.name`.
        alias: of the version; None is the champion.
        version: its number, instead of an alias.
        host: address to listen on.
        port: likewise.

    Raises:
        SettingsError: there is no such version.
        VersionError: its files are not those that were registered.
        PlainError: the address cannot be listened on.
    """
    import uvicorn

    require_free(host, port)
    device = str(choose_device(settings.device, key="serving.device"))
    use_cores()
    # Of the whole process, as the cores: an image in a CSV is longer than Python's default.
    csv.field_size_limit(settings.body)
    if model is not None and Path(model).is_dir():
        loaded = load(Path(model), device)
        served = Served(Path(model).resolve().name, None, loaded.fingerprint)
    else:
        tracking.connect(store, Path.cwd())
        if model is not None:
            found = versions.version_of(model, "--model")
        else:
            found = versions.find(registration.name, alias or CHAMPION, version)
        with tempfile.TemporaryDirectory() as folder:
            loaded = verified(found, Path(folder), registration.signing).model.to(device)
        served = Served(found.name, int(found.version), loaded.fingerprint)
    application = build(loaded, served, settings)
    label = served.model if served.version is None else f"{served.model} version {served.version}"
    log.info("%s answers at http://%s:%d/invocations (Ctrl+C ends it)", label, host, port)
    uvicorn.run(application, host=host, port=port, **server_options(settings))


def server_options(settings: ServingSettings) -> dict[str, Any]:
    """Uvicorn's options; of its two HTTP parsers, h11 alone bounds a request's header."""
    return {
        "http": "h11",
        "h11_max_incomplete_event_size": _HEADER,
        "limit_concurrency": settings.connections,
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }


def build(
    loaded: LoadedModel,
    served: Served,
    settings: ServingSettings,
    observers: Sequence[Observer] = (),
) -> Starlette:
    """The application: `/invocations`, `/ping`, `/health` and `/version`.

    Args:
        loaded: the model that answers.
        served: for `/version`.
        settings: limits.
        observers: are called, in a thread, with every exchange once its response is sent; what one
            raises is logged.
    """
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from compo_pipeline.versions.model import RequestLimits

    # Absolute and without links, as the model compares paths.
    root = None if settings.image_root is None else settings.image_root.resolve()
    limits = RequestLimits(**asdict(settings.limits), root=root)
    deployment = Deployment(loaded, served, limits)
    pool = ThreadPoolExecutor(_THREADS)

    async def invocations(request: Request) -> Response:
        start = time.monotonic()
        deployed = deployment.current
        exchange = Exchange(uuid4().hex[:12], deployed.served)
        headers = {"x-request-id": exchange.id}
        try:
            answer = await answered(request, deployed.model, exchange)
            response = Response(answer, headers=headers, media_type=_JSON)
        except Refusal as refusal:
            log.info("request %s: %d, %s", exchange.id, refusal.status, refusal)
            if refusal.unread:
                headers["connection"] = "close"
            error = {
                "error_code": refusal.code,
                "message": str(refusal),
                "request_id": exchange.id,
            }
            response = JSONResponse(error, refusal.status, headers)
        exchange.status, exchange.seconds = response.status_code, time.monotonic() - start
        if exchange.status == 200:
            log.info("request %s: 200 in %.2f s", exchange.id, exchange.seconds)
        response.background = BackgroundTask(_observe, observers, exchange)
        return response

    async def answered(request: Request, model: ImageTextModel, exchange: Exchange) -> str:
        try:
            async with asyncio.timeout(limits.seconds):
                body = await _read(request, settings.body)
                kind = request.headers.get("content-type", "")
                return await _computed(request, pool, partial(_answer, model, body, kind, exchange))
        except TimeoutError:
            reason = f"no answer within {limits.seconds} seconds: split the table, or try later"
            raise Refusal(504, reason, "DEADLINE_EXCEEDED", unread=True) from None

    async def ping(request: Request) -> Response:
        return Response("\n", media_type=_JSON)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def version(request: Request) -> Response:
        return JSONResponse(asdict(deployment.current.served))

    return Starlette(
        routes=[
            Route("/invocations", invocations, methods=["POST"]),
            Route("/ping", ping),
            Route("/health", health),
            Route("/version", version),
        ]
    )


def require_free(host: str, port: int) -> None:
    """Check that the address can be listened on, before models are loaded.

    Raises:
        PlainError: it is in use, or not of this machine.
    """
    try:
        # Bound as the server binds it: a port whose connections have just ended is free.
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        # Of the address itself: no such name, or not of this machine.
        wrong_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        option, other = "--host", "127.0.0.1, or 0.0.0.0 for all of this machine's addresses"
        if not wrong_host:
            option, other = "--port", f"another one, such as --port {port % 65535 + 1}"
        raise PlainError(
            f"{option}: cannot listen on {host}:{port} ({error.strerror}); give {other}"
        ) from None


async def _read(request: Request, limit: int) -> bytes:
    """The body; one that is too large is read to its end, which is discarded.

    A client that still writes when its connection is closed does not see the answer. One that waits
    for permission to write (`Expect`) gets none.
    """
    from starlette.requests import ClientDisconnect

    body = bytearray()
    length = request.headers.get("content-length", "")
    too_long = length.isdecimal() and int(length) > limit
    reason = f"the body has more than {limit} bytes: split the table"
    if too_long and "expect" in request.headers:
        raise Refusal(413, reason, unread=True)
    chunks = request.stream()
    try:
        async for chunk in chunks:
            body += chunk
            if too_long or len(body) > limit:
                raise Refusal(413, reason, unread=not await _discarded(chunks))
    except ClientDisconnect:
        raise Refusal(400, _LEFT) from None
    return bytes(body)


async def _discarded(chunks: AsyncIterator[bytes]) -> bool:
    """Whether the rest of a body, which is discarded, ended in time."""
    try:
        async with asyncio.timeout(_DISCARDING):
            async for _ in chunks:
                pass
    except TimeoutError:
        return False
    return True


async def _computed(
    request: Request, pool: ThreadPoolExecutor, answer: Callable[[threading.Event], str]
) -> str:
    """The answer to a request whose body was read, from a thread, while the client waits for it.

    At the end, for whatever reason, one that waits for a thread is taken from the queue, and one
    that is computed ends at its next image or batch.
    """
    ended = threading.Event()
    work = asyncio.get_running_loop().run_in_executor(pool, answer, ended)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refusal(400, _LEFT)
        return work.result()
    finally:
        ended.set()
        work.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    """Wait until the client of a request closes its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _observe(observers: Sequence[Observer], exchange: Exchange) -> None:
    for observer in observers:
        try:
            observer(exchange)
        except Exception:
            log.exception("request %s: an observer failed", exchange.id)


def _answer(
    model: ImageTextModel,
    body: bytes,
    content_type: str,
    exchange: Exchange,
    ended: threading.Event,
) -> str:
    """The answer to a request, in JSON as MLflow's server writes it, unless it has ended before.

    Raises:
        Refusal: for whatever keeps the request from an answer.
    """
    from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS
    from mlflow.pyfunc.scoring_server import predictions_to_json

    from compo_pipeline.versions.model import ENDED, RequestError

    ENDED.set(ended.is_set)
    table, params = _read_table(body, content_type, model.limits.rows)
    exchange.table, exchange.params = table, params
    try:
        exchange.answered = answered = model.answer(table, params)
    except RequestError as error:
        status = ERROR_CODE_TO_HTTP_STATUS[error.error_code]
        # The variable is that of MLflow's server.
        reason = error.args[0].replace("COMPO_CLIP_IMAGE_ROOT", "serving.image_root")
        raise Refusal(status, reason, error.error_code) from None
    answer = io.StringIO()
    predictions_to_json(answered.output, answer)  # type: ignore[no-untyped-call]
    return answer.getvalue()


def _read_table(
    body: bytes, content_type: str, most: int
) -> tuple[pd.DataFrame, dict[str, Any] | None]:
    """A request's table, with the model's columns alone, and its params.

    MLflow's own reading takes minutes, and gigabytes, for a megabyte of column names.
    """
    import pandas as pd

    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == _JSON:
            columns, lines, params = _read_json(json.loads(body))
        elif kind == _CSV:
            lines = filter(None, csv.reader(io.StringIO(body.decode("utf-8-sig"), newline="")))
            columns, params = list(next(lines, [])), None
        else:
            raise Refusal(415, f"the content type is '{kind}', expected {_JSON} or {_CSV}")
        rows = list(islice(lines, most + 1))
    except RecursionError:
        raise Refusal(400, "the JSON is nested too deeply") from None
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
    cells = {
        name: [row[place] if place < len(row) else None for row in rows]
        for name, place in places.items()
    }
    return pd.DataFrame(cells, index=range(len(rows)), dtype=object), params


def _read_json(content: Any) -> tuple[list[Any], Iterator[Sequence[Any]], dict[str, Any] | None]:
    """Names of columns, rows of cells, and params of a request in any of MLflow's forms."""
    forms = [form for form in _FORMS if isinstance(content, dict) and form in content]
    if len(forms) != 1:
        raise Refusal(400, f"expected an object with exactly one of the keys {', '.join(_FORMS)}")
    (form,) = forms
    if unknown := sorted(set(content) - {form, "params"}):
        raise Refusal(400, f"the keys {', '.join(unknown)} are unknown, expected {form} and params")
    table: Any = content[form]
    params = content.get("params")
    if not isinstance(params, dict | None):
        raise Refusal(400, "params: expected an object")
    if form == "dataframe_split" and isinstance(table, dict):
        columns: Any = table.get("columns")
        rows: Any = table.get("data")
        if _is_list_of(object, columns) and _is_list_of(list, rows):
            return columns, iter(rows), params
    elif form == "inputs" and isinstance(table, dict):
        known = {name: table[name] for name in _COLUMNS if name in table}
        lists = list(known.values())
        if _is_list_of(list, lists) and len({len(each) for each in lists}) <= 1:
            return list(known), zip(*lists, strict=True), params
    elif _is_list_of(dict, table):
        present = [name for name in _COLUMNS if any(name in row for row in table)]
        return present, ([row.get(name) for name in present] for row in table), params
    raise Refusal(400, f"{form}: {_FORMS[form]}")


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
