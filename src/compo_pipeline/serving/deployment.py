"""The model that a server answers with, and how it follows an alias of the registry."""

from __future__ import annotations

import logging
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from cachetools import LRUCache
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.core.compute import use_one_core
from compo_pipeline.core.settings import PlainError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.registry import versions
from compo_pipeline.registry.model import ImageTextModel, RequestLimits
from compo_pipeline.registry.reference import read_words
from compo_pipeline.registry.settings import CHAMPION, SigningSettings
from compo_pipeline.registry.verification import verified
from compo_pipeline.serving.batching import Batcher
from compo_pipeline.serving.exchange import Deployed, Served
from compo_pipeline.serving.settings import ServingSettings
from compo_pipeline.serving.telemetry import Metrics

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
