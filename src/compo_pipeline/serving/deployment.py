"""The model that a server answers with, and how it follows an alias of the registry.

Concurrent requests share its forward passes.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from cachetools import LRUCache
from mlflow.entities.model_registry import ModelVersion
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

from compo_pipeline.core.compute import use_one_core
from compo_pipeline.core.settings import PlainError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.registry import versions
from compo_pipeline.registry.model import (
    Encoder,
    ImageTextModel,
    RequestError,
    RequestLimits,
    Vectors,
    check_time,
)
from compo_pipeline.registry.reference import read_words
from compo_pipeline.registry.settings import CHAMPION, SigningSettings
from compo_pipeline.registry.verification import verified
from compo_pipeline.serving.exchange import Deployed, Exchange, Served
from compo_pipeline.serving.settings import ServingSettings

Observe: TypeAlias = Callable[[int], None]


@dataclass
class _PendingInputs:
    """Inputs [B, ...] of one request that wait for a forward pass, and the future of its result."""

    inputs: torch.Tensor
    context: Context = field(default_factory=copy_context)
    vectors: Future[Vectors] = field(default_factory=Future)


class Batcher:
    """Encoder that computes inputs of concurrent requests in shared batches, in one thread.

    Inputs that find the thread idle are computed at once. Those that arrive meanwhile are the next
    batch, of at most `most` inputs; more than `most` at once are a batch alone.
    """

    def __init__(
        self,
        encoder: Encoder,
        most: int,
        observe: Observe,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """Wrap an encoder.

        Args:
            encoder: computes a batch.
            most: inputs of a batch.
            observe: is called with the size of each batch.
            thread: thread that computes. Encoders may share it. None starts one.
        """
        self._encoder, self._most, self._observe = encoder, most, observe
        self._waiting: deque[_PendingInputs] = deque()
        self._thread = thread or ThreadPoolExecutor(1, "batch")

    def __call__(self, inputs: torch.Tensor) -> Vectors:
        """Embeddings [B, D] of inputs [B, ...], once they are computed.

        Raises:
            RequestError: the request ended before.
        """
        own = _PendingInputs(inputs)
        self._waiting.append(own)
        # One pass for each arrival, of which the first that runs takes what the others came with.
        self._thread.submit(self._encode_batch)
        return own.vectors.result()

    def _encode_batch(self) -> None:
        """Encode a batch of waiting inputs, without those of requests that have ended."""
        batch: list[_PendingInputs] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].inputs) <= self._most):
            waiting = self._waiting.popleft()
            try:
                waiting.context.run(check_time)
            except RequestError as error:
                waiting.vectors.set_exception(error)
                continue
            batch.append(waiting)
            size += len(waiting.inputs)
        if batch:
            self._compute(batch)

    def _compute(self, batch: list[_PendingInputs]) -> None:
        """Encode the inputs of several requests together, or each request's alone if that fails."""
        inputs = [waiting.inputs for waiting in batch]
        try:
            vectors = self._encoder(torch.cat(inputs))
            self._observe(len(vectors))
            parts = np.split(vectors, np.cumsum([len(each) for each in inputs])[:-1])
        except Exception as error:  # noqa: BLE001  raised where the result is waited for
            if len(batch) == 1:
                batch[0].vectors.set_exception(error)
                return
            for waiting in batch:
                self._compute([waiting])
            return
        for waiting, part in zip(batch, parts, strict=True):
            waiting.vectors.set_result(part)


_RETRY = 600  # seconds after which a refused version is tried again

log = logging.getLogger(__name__)


class Deployment:
    """The model that answers requests, which can be replaced while the server runs.

    A request reads `current` once, and ends on what it has read.

    Attributes:
        settings: settings of the server.
        metrics: metrics of the server.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        served: Served,
        settings: ServingSettings,
        words: frozenset[str] | None = None,
        threads: int = 1,
    ) -> None:
        """Answer with a loaded model.

        The settings hold for all that follow it.

        Args:
            loaded: the model.
            served: served version: name, version and fingerprint.
            settings: settings of the server.
            words: words of its training captions. None if they are not known.
            threads: torch's, for a forward pass.
        """
        self.settings = settings
        self.metrics = Metrics()
        # Absolute and without links, as the model compares paths.
        root = None if settings.image_root is None else settings.image_root.resolve()
        # OpenMP has a team of threads for each thread that computes with several. Once the teams
        # have more threads than there are cores, idle ones sleep at once, and a forward pass takes
        # twice as long. So one thread computes for all models, and the others compute alone.
        set_threads = partial(torch.set_num_threads, threads)
        self._computing = ThreadPoolExecutor(1, "batch", initializer=set_threads)
        self._limits = RequestLimits(**asdict(settings.limits), root=root)
        self.swap(loaded, served, words)

    def swap(
        self, loaded: LoadedModel, served: Served, words: frozenset[str] | None = None
    ) -> None:
        """Answer later requests with another model.

        `words` are its training captions' words.
        """
        self.current = Deployed(self.batched(loaded), served, words)
        self.metrics.serve(served)

    def alone(self, loaded: LoadedModel) -> ImageTextModel:
        """Model with the server's request limits that encodes each request separately."""
        model = ImageTextModel()
        model.use(loaded.model, loaded.preprocess, loaded.tokenize, self._limits)
        return model

    def batched(self, loaded: LoadedModel) -> ImageTextModel:
        """Model with the server's request limits, whose requests share forward passes and cache."""
        model = self.alone(loaded)
        if self.settings.text_cache:
            # Text, objects and their places take up to about 1300 bytes beside the coordinates.
            model.cache = LRUCache(self.settings.text_cache, lambda vector: 1300 + vector.nbytes)
        for tower, encoder in model.encoders.items():
            observe = self.metrics.batches.labels(tower).observe
            model.encoders[tower] = Batcher(encoder, self.settings.batch, observe, self._computing)
        return model


class Replaceable(Protocol):
    """A served model that can be replaced while requests come."""

    current: Deployed

    def swap(
        self, loaded: LoadedModel, served: Served, words: frozenset[str] | None = None
    ) -> None:
        """Use another model for later requests."""


class Follower:
    """Reloads a served model (champion or challenger) when its alias moves to another version.

    The new version is verified as at the start. One that fails is refused, and tried again ten
    minutes later.
    """

    def __init__(
        self,
        deployment: Deployment,
        signing: SigningSettings,
        name: str,
        alias: str,
        device: str,
        challenger: Replaceable | None = None,
    ) -> None:
        """Follow the alias of a registered model.

        Args:
            deployment: the model that answers.
            signing: the configured keys.
            name: name of the registered model.
            alias: alias of the version that is followed.
            device: device where its models go.
            challenger: shadow whose alias is followed. None follows the alias of the model that
                answers.
        """
        self._reloads = deployment.metrics.reloads
        self._signing, self._device, self._name, self._alias = signing, device, name, alias
        self._followed: Replaceable = challenger or deployment
        self._role = CHAMPION if challenger is None else "challenger"
        self._refused, self._next = 0, 0.0  # a version, and when it is tried again

    def look(self) -> None:
        """Load the version that the alias names, unless it is served.

        Errors are only logged.
        """
        version, current = None, self._followed.current.served
        try:
            found = versions.find(self._name, self._alias, None)
            version = int(found.version)
            waits = version == self._refused and time.monotonic() < self._next
            if version == current.version or waits:
                return
            use_one_core()
            self._followed.swap(*load_version(found, self._signing, self._device))
        except Exception as error:
            log.error(
                "serving.reload_seconds: %s version %s stays, as the alias %s cannot be followed: "
                "%s",
                *(current.model, current.version, self._alias),
                error.message if isinstance(error, PlainError) else repr(error),
                exc_info=None if isinstance(error, PlainError) else error,
            )
            self._refused, self._next = version or 0, time.monotonic() + _RETRY
            outcome = "unreachable" if version is None else "refused"
        else:
            outcome = "served"
            log.info("%s version %d is the %s from now on", self._name, version, self._role)
        self._reloads.labels(self._role, outcome).inc()


def load_version(
    found: ModelVersion, signing: SigningSettings, device: str
) -> tuple[LoadedModel, Served, frozenset[str] | None]:
    """Load a version: model, `/version` record, and words of its training captions.

    Args:
        found: the version.
        signing: the configured keys.
        device: device where the model goes.

    Raises:
        VersionError: its files are not those that were registered.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = verified(found, Path(folder), signing)
        loaded, words = files.load().to(device), read_words(files.export)
    return loaded, Served(found.name, int(found.version), loaded.fingerprint), words


_SECONDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_ITEMS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Prometheus metrics of one server, on a registry of its own.

    Attributes:
        running: requests without a response yet.
        batches: images, or texts, of each forward pass, by `tower`.
        reloads: versions that an alias was moved to, by its `role` (champion, challenger) and
            `outcome`.
        dropped: rows that the request log did not write, by `reason`.
        shadow: requests for a challenger, by `outcome`.
    """

    def __init__(self) -> None:
        """Create the registry."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = self._create_metric(
            Counter, "requests", "Requests to the model", "task", "status"
        )
        self._seconds = self._create_metric(
            Histogram, "request_seconds", "Seconds until the response", "task", buckets=_SECONDS
        )
        self._rows = self._create_metric(Counter, "rows", "Rows answered", "task")
        self._images = self._create_metric(
            Counter, "images", "Rows answered that have an image", "task"
        )
        self._model = self._create_metric(Info, "model", "The model that answers")
        self.running = self._create_metric(Gauge, "running_requests", "Requests in progress")
        self.batches = self._create_metric(
            Histogram, "batch_items", "Inputs of a forward pass", "tower", buckets=_ITEMS
        )
        self.reloads = self._create_metric(
            Counter, "reloads", "Versions that an alias was moved to", "role", "outcome"
        )
        self.dropped = self._create_metric(
            Counter, "log_rows_dropped", "Rows that the request log did not write", "reason"
        )
        self.shadow = self._create_metric(
            Counter, "shadow_requests", "Requests for the challenger in shadow", "outcome"
        )

    def _create_metric(
        self, kind: Any, name: str, meaning: str, *labels: str, **options: Any
    ) -> Any:
        """Create a metric with the prefix `compo_` on the registry."""
        return kind(f"compo_{name}", meaning, labels, registry=self.registry, **options)

    def serve(self, served: Served) -> None:
        """Record a newly served model in the metric that names the model answering requests."""
        self._model.info({name: str(value) for name, value in asdict(served).items()})

    def observe(self, exchange: Exchange) -> None:
        """Count a request and its answer: status, seconds, rows, images."""
        answered, task = exchange.answered, exchange.task
        self._requests.labels(task, exchange.status).inc()
        self._seconds.labels(task).observe(exchange.seconds)
        if answered is not None:
            self._rows.labels(task).inc(len(answered.output))
            self._images.labels(task).inc(0 if answered.images is None else len(answered.images))
