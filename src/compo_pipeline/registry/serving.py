"""`compo-pipeline serve`: a registered version over HTTP, with MLflow's requests and answers.

MLflow reads the table of a request and checks it against the signature. Added here are limits of
body, time and connections, and errors of one line, with an id that the log has too. No code of a
version's folder runs: its weights answer through the model.py of this program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from click import ClickException

from compo_pipeline import __version__
from compo_pipeline.compute import choose_device, use_cores
from compo_pipeline.configuration import SettingsError, parse
from compo_pipeline.models.loading import LoadedModel, load
from compo_pipeline.registry import tracking, versions
from compo_pipeline.registry.settings import (
    CHAMPION,
    RegistrationSettings,
    ServingSettings,
    TrackingSettings,
)

if TYPE_CHECKING:
    import pandas as pd
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from compo_pipeline.registry.model import ImageTextModel

_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
_TABLES = ("dataframe_records", "dataframe_split", "inputs", "instances")
# Not MLflow's third, Parquet: a small file can unpack to more than the memory.
_JSON, _CSV = "application/json", "text/csv"
# Requests computed at once; torch uses all cores for each.
_THREADS = 4
_REASON = 500

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What `/version` tells: the registered model and version, and a hash of its weights."""

    model: str
    version: int | None
    fingerprint: str
    program: str = __version__


class Refusal(Exception):
    """A request that gets no answer: HTTP status, MLflow's name of the error, reason."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        """Create the error; of the reason, which may quote the request, one line is kept."""
        line = " ".join(reason[: 2 * _REASON].split())
        super().__init__("".join(filter(str.isprintable, line))[:_REASON])
        self.status, self.code = status, code


def run(
    parameters: Mapping[str, Any],
    model: str | None,
    alias: str | None,
    version: int | None,
    host: str,
    port: int,
) -> None:
    """Serve a version until the process is interrupted.

    Args:
        parameters: the project's, whose folder is the working directory.
        model: `models:/<name>@<alias>`, `models:/<name>/<version>` or the folder of an exported
            model; None is the model of the setting `registration.name`.
        alias: of the version; None is the champion.
        version: its number, instead of an alias.
        host: address to listen on.
        port: likewise.

    Raises:
        SettingsError: there is no such version, or its files are not those that were registered.
        ClickException: the address cannot be listened on.
    """
    import uvicorn

    require_free(host, port)
    settings = parse(ServingSettings, parameters["serving"], "serving")
    device = str(choose_device(settings.device, key="serving.device"))
    use_cores()
    if model is not None and Path(model).is_dir():
        loaded = load(Path(model), device)
        served = Served(Path(model).resolve().name, None, loaded.fingerprint)
    else:
        tracking.connect(parse(TrackingSettings, parameters["tracking"], "tracking"), Path.cwd())
        name = parse(RegistrationSettings, parameters["registration"], "registration").name
        if model is not None:
            name, alias, version = _named(model)
        found = versions.find(name, alias or CHAMPION, version)
        with tempfile.TemporaryDirectory() as folder:
            loaded = versions.load_version(found, Path(folder), device)
        served = Served(name, int(found.version), loaded.fingerprint)
    application = build(loaded, served, settings)
    label = served.model if served.version is None else f"{served.model} version {served.version}"
    log.info("%s answers at http://%s:%d/invocations (Ctrl+C ends it)", label, host, port)
    uvicorn.run(
        application,
        host=host,
        port=port,
        limit_concurrency=settings.connections,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="warning",
    )


def build(loaded: LoadedModel, served: Served, settings: ServingSettings) -> Starlette:
    """The application: `/invocations`, `/ping`, `/health` and `/version`.

    Args:
        loaded: the model that answers.
        served: for `/version`.
        settings: limits.
    """
    from mlflow.models import Model
    from mlflow.pyfunc import PyFuncModel
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from compo_pipeline.registry.model import ImageTextModel, RequestLimits
    from compo_pipeline.registry.registration import mlflow_signature

    model = ImageTextModel()
    limits = RequestLimits(**asdict(settings.limits), root=settings.image_root)
    model.use(loaded.model, loaded.preprocess, loaded.tokenize, limits)
    # As MLflow loads a folder, without the folder: its predict checks the signature first.
    checked = PyFuncModel(Model(signature=mlflow_signature()), _Prediction(model))
    pool = ThreadPoolExecutor(_THREADS)

    async def invocations(request: Request) -> Response:
        name, start = uuid4().hex[:12], time.monotonic()
        headers = {"x-request-id": name}
        try:
            answer = await answered(request)
        except Refusal as refusal:
            log.info("request %s: %d, %s", name, refusal.status, refusal)
            error = {"error_code": refusal.code, "message": str(refusal), "request_id": name}
            return JSONResponse(error, refusal.status, headers)
        log.info("request %s: 200 in %.2f s", name, time.monotonic() - start)
        return Response(answer, headers=headers, media_type=_JSON)

    async def answered(request: Request) -> str:
        try:
            async with asyncio.timeout(limits.seconds):
                body = await _read(request, settings.body)
                kind = request.headers.get("content-type", "")
                loop = asyncio.get_running_loop()
                # A request that still waits for a thread at its end is taken from the queue.
                return await loop.run_in_executor(pool, _answer, checked, body, kind)
        except TimeoutError:
            reason = f"no answer within {limits.seconds} seconds: split the table, or try later"
            raise Refusal(504, "DEADLINE_EXCEEDED", reason) from None

    async def ping(request: Request) -> Response:
        return Response("\n", media_type=_JSON)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def version(request: Request) -> Response:
        return JSONResponse(asdict(served))

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
        ClickException: it is in use, or not of this machine.
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
        raise ClickException(
            f"--port: cannot listen on {host}:{port} ({error.strerror}); give another one, "
            f"such as --port {port + 1}"
        ) from None


@dataclass(frozen=True)
class _Prediction:
    """The served model as MLflow's wrapper calls it."""

    model: ImageTextModel

    def predict(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        return self.model.predict(None, table, params)


def _named(uri: str) -> tuple[str, str | None, int | None]:
    """Name, alias and version of a registered model's URI."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise SettingsError(
            f"--model: '{uri}' is neither models:/<name>@<alias>, models:/<name>/<version> nor the "
            "folder of an exported model"
        )
    number = match["version"]
    return match["name"], match["alias"], None if number is None else int(number)


async def _read(request: Request, limit: int) -> bytes:
    """The body; one that is too large is not read to its end."""
    from starlette.requests import ClientDisconnect

    body = bytearray()
    length = request.headers.get("content-length", "")
    too_long = length.isdecimal() and int(length) > limit
    try:
        async for chunk in request.stream():
            body += chunk
            if too_long or len(body) > limit:
                reason = f"the body has more than {limit} bytes: split the table"
                raise Refusal(413, "BAD_REQUEST", reason)
    except ClientDisconnect:
        raise Refusal(400, "BAD_REQUEST", "the client left") from None
    return bytes(body)


def _answer(model: Any, body: bytes, content_type: str) -> str:
    """MLflow's answer to a request, in JSON.

    Args:
        model: MLflow's `PyFuncModel`.
        body: of the request.
        content_type: likewise.

    Raises:
        Refusal: for whatever keeps the request from an answer.
    """
    from mlflow.exceptions import ERROR_CODE_TO_HTTP_STATUS, MlflowException
    from mlflow.pyfunc import scoring_server

    from compo_pipeline.registry.model import RequestError

    kind = content_type.partition(";")[0].strip()
    if kind not in (_JSON, _CSV):
        reason = f"the content type is '{kind}', expected {_JSON} or {_CSV}"
        raise Refusal(415, "BAD_REQUEST", reason)
    content = _parsed(body) if kind == _JSON else body
    try:
        schema = model.metadata.get_input_schema()
        answer: Any = scoring_server.invocations(content, content_type, model, schema)  # type: ignore[no-untyped-call]
    except RequestError as error:
        status = ERROR_CODE_TO_HTTP_STATUS[error.error_code]
        raise Refusal(status, error.error_code, error.args[0]) from None
    except MlflowException as error:
        # Its arguments lack the table, which MLflow puts before the message.
        reason = str(error.args[0]).rpartition("Error: ")[2]
        raise Refusal(400, "BAD_REQUEST", f"the table cannot be read: {reason}") from None
    except Exception as error:
        # MLflow and pandas raise many kinds of errors at what is no table.
        log.info("A table cannot be read.", exc_info=True)
        reason = f"the table cannot be read: {type(error).__name__}"
        raise Refusal(400, "BAD_REQUEST", reason) from None
    if answer.status != 200:
        raise Refusal(answer.status, "BAD_REQUEST", answer.response)
    return str(answer.response)


def _parsed(body: bytes) -> dict[str, Any]:
    """A request's table and parameters."""
    try:
        content = json.loads(body)
    except RecursionError:
        raise Refusal(400, "BAD_REQUEST", "the JSON is nested too deeply") from None
    except ValueError as error:
        raise Refusal(400, "BAD_REQUEST", f"the body is not JSON: {error}") from None
    tables = [key for key in _TABLES if isinstance(content, dict) and key in content]
    if len(tables) != 1:
        reason = f"expected an object with exactly one of the keys {', '.join(_TABLES)}"
        raise Refusal(400, "BAD_REQUEST", reason)
    return {key: content[key] for key in (*tables, "params") if key in content}
